"""Declares every flag of the server once, in the order of ``--help`` (docs/reference/flags.md)."""

from __future__ import annotations

from functools import partial

from runtime.config.adapters import ADAPTER_FLAGS
from runtime.config.chat_flags import CHAT_FLAGS
from runtime.config.decoding import DECODING_FLAGS
from runtime.config.flags import Flag

_model = partial(Flag, group="model", engine=True)
_parallel = partial(Flag, group="parallelism and devices")
_memory = partial(Flag, group="blocks, batches and memory", engine=True)
_speed = partial(Flag, group="execution", engine=True)
_server = partial(Flag, group="server")

FLAGS: tuple[Flag, ...] = (
    _model(name="model", metavar="DIR|hf://ORG/NAME[@REV]", help="checkpoint to serve; the shipped demo without it"),
    _model(
        name="model-name",
        aliases=("model-family",),
        metavar="FAMILY",
        help="registered family key; read from config.json without it",
    ),
    Flag(
        name="served-model-name",
        group="model",
        many=True,
        default=(),
        metavar="NAME",
        help="id under which clients ask for the model, repeatable; default: the directory's or repository's name",
    ),
    Flag(
        name="chat-template",
        group="model",
        metavar="FILE",
        help="jinja file, of 1 MiB at most, used instead of the checkpoint's own",
    ),
    *CHAT_FLAGS,
    _model(
        name="decoding-strategy",
        metavar="STRATEGY",
        help="how blocks are decoded: multi_bd, dmax, full, d2f, fast_dllm_v2, nemotron_diffusion, diffusion_gemma; "
        "default: the family's",
    ),
    _model(
        name="sampling-mode",
        choices=("naive", "edit"),
        help="edit lets filled tokens be revised, and makes the edit algorithm the default; default: naive, where the "
        "family has it",
    ),
    _model(
        name="mask-token-id", type="int", low=0, help="default: config.json, then the tokenizer, then the family's own"
    ),
    _model(
        name="eos-token-ids",
        type="int",
        low=0,
        many=True,
        comma=True,
        metavar="ID,...",
        help="ids that end an answer; default: the union of what the checkpoint's files name, else the family's own",
    ),
    _parallel(
        name="data-parallel-size", type="int", default=1, low=1, help="replicas, one backend process per replica"
    ),
    _parallel(
        name="tensor-parallel-size",
        type="int",
        default=1,
        low=1,
        engine=True,
        help="devices over which a replica's weights are sharded, one process per device",
    ),
    _parallel(
        name="expert-parallel-size",
        type="int",
        default=1,
        low=1,
        engine=True,
        help="1: shard every expert; --tensor-parallel-size: distribute full experts over the devices",
    ),
    _parallel(name="num-nodes", type="int", default=1, low=1, help="hosts of a replica, with equally many devices"),
    _parallel(
        name="node-rank",
        type="int",
        default=0,
        low=0,
        help="index of this host; 0 serves, the others only run ranks",
    ),
    _parallel(
        name="master-addr",
        default="localhost",
        metavar="HOST",
        help="address of node 0; connections are not authenticated, so use trusted networks only",
    ),
    _parallel(name="master-port", type="int", low=1, high=65535, help="port of node 0; required with --num-nodes"),
    _parallel(
        name="distributed-timeout-seconds",
        type="float",
        default=600.0,
        low=0,
        above_low=True,
        engine=True,
        help="how long the processes of a replica wait for each other: at start, and in a step",
    ),
    _parallel(
        name="device", choices=("cuda", "cpu"), engine=True, help="default: cuda where a GPU is usable, else cpu"
    ),
    _parallel(
        name="device-ids",
        type="int",
        low=0,
        many=True,
        comma=True,
        metavar="ID,...",
        help="logical GPUs, those of the first replica first; default: 0, 1, ...",
    ),
    _model(
        name="dtype",
        choices=("bfloat16", "float16", "float32"),
        help="default: bfloat16 on cuda, float32 on cpu",
    ),
    _model(
        name="quantization",
        choices=("fp8", "int8", "int4"),
        help="format of linear layers and experts, made while they are loaded: e4m3 or int8 with a scale for each "
        "output, int4 with one for each 128 inputs of it; default: what the checkpoint holds",
    ),
    _memory(name="block-size", type="int", low=1, help="tokens of a block; default: the checkpoint's, else family's"),
    _memory(name="buffer-size", type="int", low=1, help="blocks denoised at once (S); default 1 (d2f: 4)"),
    _memory(
        name="page-size",
        type="int",
        low=1,
        help="tokens of a KV page, a multiple or divisor of blocks that do not begin at the prompt's end; 32",
    ),
    _memory(
        name="max-model-len",
        type="int",
        low=1,
        help="prompt and answer together; default: the smaller of 4096 and the checkpoint's limit",
    ),
    _memory(
        name="max-num-batched-tokens",
        type="int",
        default=8192,
        low=1,
        help="tokens of one forward; longer prompts are prefilled in chunks",
    ),
    _memory(name="max-num-reqs", type="int", default=128, low=1, help="requests decoded at the same time"),
    _memory(
        name="gpu-memory-utilization",
        type="float",
        default=0.9,
        low=0,
        high=1,
        above_low=True,
        help="fraction of the GPU memory free at start that may be used",
    ),
    _memory(name="num-pages", type="int", low=1, help="KV pages; default: as many as the memory allows"),
    _memory(
        name="kv-cache-layout",
        default="unified",
        choices=("unified", "distinct"),
        help="keys and values of a page: token after token, or each head for itself, keys in pieces of 8 numbers and "
        "values transposed",
    ),
    _memory(name="disable-prefix-caching", type="bool", default=False, help="recompute every prompt"),
    _speed(
        name="attn-impl",
        choices=("triton_grouped", "triton", "torch"),
        synonyms=(("naive", "torch"),),
        help="attention kernel; default: triton_grouped on cuda, torch on cpu (naive is another name of torch)",
    ),
    _speed(
        name="disable-full-static-runner",
        type="bool",
        default=False,
        help="CUDA graphs of the model's forward only; the LM head and unmasking algorithms run eagerly",
    ),
    _speed(name="enforce-eager", type="bool", default=False, help="no CUDA graphs"),
    _speed(
        name="disable-torch-compile",
        type="bool",
        default=False,
        help="ignore --torch-compile-mode",
    ),
    _speed(
        name="torch-compile-mode",
        choices=("default", "max-autotune-no-cudagraphs"),
        help="compile operations on full logits (argmax, entropy) with torch.compile, in this mode; default: compile "
        "nothing",
    ),
    _speed(
        name="deterministic",
        type="bool",
        default=False,
        help="batch-invariant kernels: results do not depend on other requests; slower, on CPUs many times",
    ),
    *ADAPTER_FLAGS,
    *DECODING_FLAGS,
    _server(
        name="host",
        default="::",
        help="address or name to listen on; default: all IPv4 and IPv6 addresses, without IPv6 on the host 0.0.0.0",
    ),
    _server(name="port", type="int", default=8000, low=0, high=65535, help="port to listen on; 0 takes a free one"),
    _server(
        name="log-level",
        default="info",
        choices=("critical", "error", "warning", "info", "debug"),
        help="log level of all processes",
    ),
    _server(name="log-format", default="text", choices=("text", "json"), help="json for log collectors"),
    _server(
        name="zmq-command-addr",
        metavar="ADDR",
        help="address of the socket from the frontend to the backends, ipc://PATH; default: a private path",
    ),
    _server(
        name="zmq-event-addr",
        metavar="ADDR",
        help="address of the socket from the backends, ipc://PATH; default: a private path",
    ),
    _server(
        name="api-key",
        many=True,
        comma=True,
        default=(),
        secret=True,
        metavar="KEY,...",
        help="bearer keys that clients must present, of 16 characters or more; the process list shows them, so that "
        "--api-key-file or UNMASK_API_KEY are better places",
    ),
    _server(
        name="api-key-file",
        metavar="FILE",
        help="file of API keys, one per line or comma-separated; read again when it changes",
    ),
    _server(
        name="cors-allow-origins",
        many=True,
        comma=True,
        default=(),
        metavar="ORIGIN,...",
        help="origins whose pages may call the server, or *; default: none",
    ),
    _server(
        name="allowed-hosts",
        many=True,
        comma=True,
        default=(),
        metavar="HOST,...",
        help="further host names, without a port, by which clients without a key may request the server, or *; "
        "default: localhost and loopback addresses if --host is a loopback address, else any",
    ),
    _server(
        name="strict-fields",
        type="bool",
        default=False,
        help="refuse fields of requests that are not known, instead of ignoring them",
    ),
    _server(
        name="max-queue",
        type="int",
        default=1024,
        low=1,
        help="maximum number of waiting requests, 429 beyond; one HTTP request with several completions (with several "
        "keys: one key) gets at most half of --max-queue and --max-num-reqs",
    ),
    _server(
        name="frontend-processes",
        aliases=("api-server-count",),
        type="int",
        default=1,
        low=1,
        high=64,
        help="processes that serve HTTP for the same backends: for many short requests per second",
    ),
    _server(
        name="max-connections",
        type="int",
        low=1,
        help="connections open at once; default: 4096, or what the limit of open files leaves",
    ),
    _server(
        name="drain-delay",
        type="float",
        default=0.0,
        low=0,
        help="seconds to keep serving after SIGTERM before the listener closes",
    ),
    _server(name="drain-timeout", type="float", default=30.0, low=0, help="seconds to let running requests finish"),
    _server(
        name="request-timeout",
        type="float",
        default=600.0,
        low=0,
        help="maximum seconds per request, including waiting; 0: no limit",
    ),
    _server(
        name="profiler",
        choices=("torch",),
        help="profiler behind POST /start_profile and /stop_profile, which answer 409 without it; needs "
        "--torch-profiler-dir",
    ),
    _server(
        name="torch-profiler-dir",
        metavar="DIR",
        help="directory of the profiler's traces, one file per backend",
    ),
    _server(name="config", metavar="FILE.yaml", help="file of flags, one `name: value` per line"),
    _server(name="print-config", type="bool", default=False, help="print the resolved values and exit"),
)

BY_DEST: dict[str, Flag] = {flag.dest: flag for flag in FLAGS}
BY_SPELLING: dict[str, Flag] = {name.replace("-", "_"): flag for flag in FLAGS for name in flag.spellings}

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
    _model(
        name="model",
        common=True,
        metavar="DIR|hf://ORG/NAME[@REV]",
        help="checkpoint to serve; default: the demo model of this package",
    ),
    _model(
        name="model-name",
        aliases=("model-family",),
        metavar="FAMILY",
        help="key of the model family; default: the family that config.json names",
    ),
    Flag(
        name="served-model-name",
        common=True,
        group="model",
        many=True,
        default=(),
        metavar="NAME",
        help="model id that requests name, repeatable; default: the directory's or repository's name",
    ),
    Flag(
        name="chat-template",
        group="model",
        metavar="FILE",
        help="Jinja file of at most 1 MiB that replaces the checkpoint's chat template",
    ),
    *CHAT_FLAGS,
    _model(
        name="plugin",
        many=True,
        default=(),
        metavar="FILE.py",
        help="Python file that registers a decoding strategy, an unmasking algorithm or a model family, repeatable; "
        "it is executed in every process",
    ),
    _model(
        name="decoding-strategy",
        metavar="STRATEGY",
        help="decoding strategy: multi_bd, dmax, full, d2f, fast_dllm_v2, nemotron_diffusion, diffusion_gemma; "
        "default: that of the family",
    ),
    _model(
        name="sampling-mode",
        choices=("naive", "edit"),
        help="edit allows the revision of unmasked tokens, and makes edit the default algorithm; default: "
        "naive, if the family supports it",
    ),
    _model(
        name="mask-token-id",
        type="int",
        low=0,
        help="id of the mask token; default: that of config.json, else of the tokenizer, else of the family",
    ),
    _model(
        name="eos-token-ids",
        type="int",
        low=0,
        many=True,
        comma=True,
        metavar="ID,...",
        help="ids that end an output; default: all that the checkpoint's files name, else those of the family",
    ),
    _parallel(
        name="data-parallel-size",
        type="int",
        default=1,
        low=1,
        help="number of replicas, each in its own backend process",
    ),
    _parallel(
        name="tensor-parallel-size",
        common=True,
        type="int",
        default=1,
        low=1,
        engine=True,
        help="devices per replica; weights are sharded over them, one process per device",
    ),
    _parallel(
        name="expert-parallel-size",
        type="int",
        default=1,
        low=1,
        engine=True,
        help="1: shard every expert; --tensor-parallel-size: distribute complete experts over the devices",
    ),
    _parallel(
        name="num-nodes", type="int", default=1, low=1, help="hosts per replica, each with the same number of devices"
    ),
    _parallel(
        name="node-rank",
        type="int",
        default=0,
        low=0,
        help="index of this host; host 0 serves HTTP, the others only run ranks",
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
        help="maximum seconds that the processes of a replica wait for each other, at start and in a step",
    ),
    _parallel(
        name="device",
        common=True,
        choices=("cuda", "cpu"),
        engine=True,
        help="device of the model; default: cuda if a GPU is usable, else cpu",
    ),
    _parallel(
        name="device-ids",
        type="int",
        low=0,
        many=True,
        comma=True,
        metavar="ID,...",
        help="indices of the GPUs to use, first those of replica 0; default: 0, 1, ...",
    ),
    _model(
        name="dtype",
        choices=("bfloat16", "float16", "float32"),
        help="data type of weights and KV cache; default: bfloat16 on cuda, float32 on cpu",
    ),
    _model(
        name="quantization",
        common=True,
        choices=("fp8", "int8", "int4"),
        help="quantize linear layers and experts while they are loaded: fp8 (e4m3) and int8 with one scale per "
        "output channel, int4 with one per 128 inputs; default: the checkpoint's format",
    ),
    _memory(
        name="block-size",
        type="int",
        low=1,
        help="tokens per block; default: that of the checkpoint, else of the family",
    ),
    _memory(
        name="buffer-size", type="int", low=1, help="maximum number of blocks denoised at once; default: 1 (d2f: 4)"
    ),
    _memory(
        name="page-size",
        type="int",
        low=1,
        help="tokens per page of the KV cache, a multiple or a divisor of the block size unless blocks begin "
        "at the end of the prompt; default: 32",
    ),
    _memory(
        name="max-model-len",
        common=True,
        type="int",
        low=1,
        help="maximum number of prompt and output tokens of a request; default: 4096, or the checkpoint's "
        "limit if that is lower",
    ),
    _memory(
        name="max-num-batched-tokens",
        type="int",
        default=8192,
        low=1,
        help="maximum number of tokens per forward; longer prompts are prefilled in chunks",
    ),
    _memory(
        name="max-num-reqs",
        common=True,
        type="int",
        default=128,
        low=1,
        help="maximum number of requests that run at the same time",
    ),
    _memory(
        name="gpu-memory-utilization",
        common=True,
        type="float",
        default=0.9,
        low=0,
        high=1,
        above_low=True,
        help="fraction of the GPU memory free at start that may be used",
    ),
    _memory(name="num-pages", type="int", low=1, help="pages of the KV cache; default: as many as the memory allows"),
    _memory(
        name="kv-cache-layout",
        default="unified",
        choices=("unified", "distinct"),
        help="layout of a page of the KV cache; unified: one token after another; distinct: one head after "
        "another, with keys in groups of 8 elements and values transposed",
    ),
    _memory(
        name="disable-prefix-caching", type="bool", default=False, help="do not reuse the KV cache of earlier prompts"
    ),
    _speed(
        name="attn-impl",
        choices=("triton_grouped", "triton", "torch"),
        synonyms=(("naive", "torch"),),
        help="attention kernel; naive is an alias of torch; default: triton_grouped on cuda, torch on cpu",
    ),
    _speed(
        name="disable-full-static-runner",
        type="bool",
        default=False,
        help="capture only the model's forward in CUDA graphs; the LM head and unmasking algorithms run eagerly",
    ),
    _speed(name="enforce-eager", type="bool", default=False, help="disable CUDA graphs"),
    _speed(
        name="disable-torch-compile",
        type="bool",
        default=False,
        help="ignore --torch-compile-mode",
    ),
    _speed(
        name="torch-compile-mode",
        choices=("default", "max-autotune-no-cudagraphs"),
        help="compile operations on full logits (argmax, entropy) with torch.compile, in this mode; default: "
        "no compilation",
    ),
    _speed(
        name="deterministic",
        type="bool",
        default=False,
        help="use batch-invariant kernels: results do not depend on other requests; slower, many times on CPUs",
    ),
    *ADAPTER_FLAGS,
    *DECODING_FLAGS,
    _server(
        name="host",
        common=True,
        default="127.0.0.1",
        help="address or name to listen on; :: accepts other machines, over IPv6 and IPv4; UNMASK_DEFAULT_HOST, which "
        "the container image sets to ::, replaces the default",
    ),
    _server(
        name="port",
        common=True,
        type="int",
        default=8000,
        low=0,
        high=65535,
        help="port to listen on; 0 selects a free port",
    ),
    _server(
        name="log-level",
        default="info",
        choices=("critical", "error", "warning", "info", "debug"),
        help="log level of all processes",
    ),
    _server(
        name="log-format", default="text", choices=("text", "json"), help="format of the log; json for log collectors"
    ),
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
        help="bearer keys that clients must present, of at least 16 characters; every user of the machine sees "
        "them in the process list, so prefer --api-key-file or UNMASK_API_KEY",
    ),
    _server(
        name="api-key-file",
        common=True,
        metavar="FILE",
        help="file of API keys, one per line or comma-separated; read again when it changes",
    ),
    _server(
        name="cors-allow-origins",
        many=True,
        comma=True,
        default=(),
        metavar="ORIGIN,...",
        help="origins whose pages may send requests from a browser, or *; default: none",
    ),
    _server(
        name="allowed-hosts",
        many=True,
        comma=True,
        default=(),
        metavar="HOST,...",
        help="further host names, without port, that clients without a key may use, or *; default: localhost "
        "and loopback addresses if --host is a loopback address, else any",
    ),
    _server(
        name="strict-fields",
        type="bool",
        default=False,
        help="reject unknown fields of requests instead of ignoring them",
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
        help="processes that serve HTTP for the same backends, for many short requests per second",
    ),
    _server(
        name="max-connections",
        type="int",
        low=1,
        help="maximum number of open connections; default: 4096, or what the limit of open files allows",
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
        help="profiler of POST /start_profile and /stop_profile, which return 409 without it; requires "
        "--torch-profiler-dir",
    ),
    _server(
        name="torch-profiler-dir",
        metavar="DIR",
        help="directory of the profiler's traces, one file per backend",
    ),
    _server(name="config", common=True, metavar="FILE.yaml", help="YAML file of flags, one `name: value` per line"),
    _server(name="print-config", type="bool", default=False, help="print the resolved values and exit"),
)

BY_DEST: dict[str, Flag] = {flag.dest: flag for flag in FLAGS}
BY_SPELLING: dict[str, Flag] = {name.replace("-", "_"): flag for flag in FLAGS for name in flag.spellings}

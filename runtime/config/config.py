"""Typed configuration: each flag is declared once, as a field (docs/reference/flags.md).

Values are validated as far as possible without opening the checkpoint.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, Self

from runtime.config.adapter_names import named_adapters
from runtime.config.api_keys import check_keys
from runtime.config.flags import DECODING, Flag, check_fields, declare_flag, declared_flags
from runtime.config.suggestions import did_you_mean
from runtime.errors import ConfigError

# A name, an IPv4 address or an IPv6 address without brackets, as `--allowed-hosts` takes it.
HOST_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?|[0-9A-Fa-f:]*:[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*")
DEMO_NAME = "unmask-demo"
_ROUNDED = "are rounded may depend on how many rows there are"

_model = partial(declare_flag, "model")
_parallel = partial(declare_flag, "parallelism and devices")
_memory = partial(declare_flag, "blocks, batches and memory")
_execution = partial(declare_flag, "execution")
_adapters = partial(declare_flag, "adapters")
_decoding = partial(declare_flag, DECODING)
_fraction = partial(_decoding, low=0, high=1)
_structured = partial(declare_flag, "structured output (a request may override it)")
_server = partial(declare_flag, "server")


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Configuration of one engine. ``None`` means "decided at start" (by checkpoint, device or docs/guide/decoding.md).

    Values are checked and converted on construction; a ConfigError names the flag.
    """

    model: str | None = _model(
        "checkpoint to serve; default: the demo model of this package", common=True, metavar="DIR|hf://ORG/NAME[@REV]"
    )
    model_name: str | None = _model(
        "key of the model family; default: the family that config.json names",
        aliases=("model-family",), metavar="FAMILY",
    )  # fmt: skip
    plugin: tuple[str, ...] = _model(
        "Python file that registers a decoding strategy, an unmasking algorithm or a model family, repeatable; it "
        "is executed in every process",
        default=(), metavar="FILE.py",
    )  # fmt: skip
    decoding_strategy: str | None = _model(
        "decoding strategy: multi_bd, dmax, full, d2f, fast_dllm_v2, nemotron_diffusion, diffusion_gemma; "
        "default: that of the family",
        metavar="STRATEGY",
    )
    sampling_mode: Literal["naive", "edit"] | None = _model(
        "edit allows the revision of unmasked tokens, and makes edit the default algorithm; default: edit for "
        "LLaDA2.2, and for LLaDA2.1 by its name, else naive"
    )
    mask_token_id: int | None = _model(
        "id of the mask token; default: that of config.json, else of the tokenizer, else of the family", low=0
    )
    eos_token_ids: tuple[int, ...] | None = _model(
        "ids that end an output; default: all that the checkpoint's files name, else those of the family",
        low=0, comma=True, metavar="ID,...",
    )  # fmt: skip
    tensor_parallel_size: int = _parallel(
        "devices per replica; weights are sharded over them, one process per device", default=1, common=True, low=1
    )
    expert_parallel_size: int = _parallel(
        "1: shard every expert; --tensor-parallel-size: distribute complete experts over the devices", default=1, low=1
    )
    distributed_timeout_seconds: float = _parallel(
        "maximum seconds that the processes of a replica wait for each other, at start and in a step",
        default=600.0, low=0, above_low=True,
    )  # fmt: skip
    device: Literal["cuda", "cpu"] | None = _parallel(
        "device of the model; default: cuda if a GPU is usable, else cpu", common=True
    )
    # float64 is for tests; only the Python API accepts it.
    dtype: Literal["bfloat16", "float16", "float32", "float64"] | None = _model(
        "data type of weights and KV cache; default: bfloat16 on cuda, float32 on cpu",
        choices=("bfloat16", "float16", "float32"),
    )
    quantization: Literal["fp8", "int8", "int4", "nvfp4"] | None = _model(
        "quantize linear layers and experts while they are loaded: fp8 (e4m3) and int8 with one scale per output "
        "channel, int4 with one per 128 inputs, nvfp4 (e2m1) with one per 16; default: the checkpoint's format",
        common=True,
    )
    block_size: int | None = _memory("tokens per block; default: that of the checkpoint, else of the family", low=1)
    buffer_size: int | None = _memory("maximum number of blocks denoised at once; default: 1 (d2f: 4)", low=1)
    page_size: int | None = _memory(
        "tokens per page of the KV cache, a multiple or a divisor of the block size unless blocks begin at the "
        "end of the prompt; default: 32",
        low=1,
    )
    max_model_len: int | None = _memory(
        "maximum number of prompt and output tokens of a request; default: the length that the checkpoint was trained "
        "for, or the longest request for which there is memory",
        common=True, low=1,
    )  # fmt: skip
    max_num_batched_tokens: int = _memory(
        "maximum number of tokens per forward; longer prompts are prefilled in chunks", default=8192, low=1
    )
    max_num_reqs: int = _memory("maximum number of requests that run at the same time", default=128, common=True, low=1)
    gpu_memory_utilization: float = _memory(
        "fraction of the GPU memory free at start that may be used",
        default=0.9, common=True, low=0, high=1, above_low=True,
    )  # fmt: skip
    num_pages: int | None = _memory("pages of the KV cache; default: as many as the memory allows", low=1)
    kv_cache_layout: Literal["unified", "distinct"] = _memory(
        "layout of a page of the KV cache; unified: one token after another; distinct: one head after another, "
        "with keys in groups of 8 elements and values transposed",
        default="unified",
    )
    disable_prefix_caching: bool = _memory("do not reuse the KV cache of earlier prompts", default=False)
    attn_impl: Literal["triton_grouped", "triton", "torch"] | None = _execution(
        "attention kernel; naive is an alias of torch; default: triton_grouped on cuda, torch on cpu",
        synonyms=(("naive", "torch"),),
    )
    disable_full_static_runner: bool = _execution(
        "capture only the model's forward in CUDA graphs; the LM head and unmasking algorithms run eagerly",
        default=False,
    )
    enforce_eager: bool = _execution("disable CUDA graphs", default=False)
    disable_torch_compile: bool = _execution("ignore --torch-compile-mode", default=False)
    torch_compile_mode: Literal["default", "max-autotune-no-cudagraphs"] | None = _execution(
        "compile operations on full logits (argmax, entropy) with torch.compile, in this mode; default: no compilation"
    )
    deterministic: bool = _execution(
        "use batch-invariant kernels: results do not depend on other requests; slower, many times on CPUs",
        default=False,
    )
    quantized_lm_head: bool = _execution(
        "with fp8 weights on a GPU, find the argmax of greedy requests with an e4m3 copy of the LM head, and compute "
        "its candidates again in 16 bits",
        default=False,
    )
    use_lora: bool = _adapters("use the adapter of --lora-path for all requests", default=False)
    lora_path: str | None = _adapters(
        "adapter of --use-lora, in PEFT's format", metavar="DIR|hf://ORG/NAME[@REV]|demo://NAME"
    )
    pre_merge_lora: bool = _adapters(
        "merge the adapter of --lora-path into the weights at load time, so that requests cost no more", default=False
    )
    lora: tuple[str, ...] = _adapters(
        "adapter that requests select as their model, repeatable; demo://roman is the demo model's",
        default=(), metavar="NAME=DIR|NAME=hf://ORG/NAME[@REV]|NAME=demo://NAME",
    )  # fmt: skip
    max_loras: int | None = _adapters(
        "maximum number of adapters in device memory, others stay in host memory; default: 8 if there are any",
        low=1, high=256,
    )  # fmt: skip
    max_lora_rank: int | None = _adapters(
        "maximum rank of an adapter; default: the largest of --lora, at least 16", low=1, high=512
    )
    decoding: str | None = _decoding(
        "defaults of the fields of `decoding`, for clients that cannot send them: a JSON object as in requests",
        type="json",
    )
    # Decoding defaults of the server. None: the default of the family, else that of docs/guide/decoding.md.
    add_block_threshold: float | None = _fraction(
        "progress of the newest block at which the next block opens; default: 0.1"
    )
    semi_complete_threshold: float | None = _fraction(
        "progress of a block at which the next block may force a token; default: 0.9 (d2f: 0.95)"
    )
    accept_threshold: float | None = _fraction(
        "confidence above which a token is accepted; default: that of the model, else 0.9 (dmax: 0.5)"
    )
    edit_threshold: float | None = _fraction(
        "confidence above which edit replaces an unmasked token; default: that of the model, else 0"
    )
    remask_threshold: float | None = _fraction(
        "confidence below which threshold masks an unmasked token again; default: 0 (never)"
    )
    token_stability_threshold: float | None = _fraction(
        "fraction of unchanged tokens at which the next block opens; default: 0"
    )
    max_post_edit_steps: int | None = _decoding(
        "maximum number of edit steps of a block without masks; default: 16", low=0
    )
    penalty_lambda: float | None = _decoding("penalty of edit on repeating the previous token; default: 0", low=0)
    full_cache: Literal["prefix", "dual", "vicinity"] | None = _decoding(
        "part of the KV cache that later steps of full reuse; default: none"
    )
    token_merge_mode: Literal["dmax_topk", "iter_smooth_topk"] | None = _decoding(
        "how dmax mixes embeddings of unmasked positions; default: dmax_topk"
    )
    token_merge_top_k: int | None = _decoding(
        "number of most probable tokens that dmax mixes; default: 1", low=1, high=64
    )
    token_merge_renormalize: bool | None = _decoding("keep the norm of the embeddings (dmax_topk); default: true")
    token_merge_weight: float | None = _decoding(
        "weight of the added mixture (iter_smooth_topk); default: 1", low=0, high=100
    )
    full_canvas: bool | None = _decoding("all canvases have canvas_length positions, also the last one; default: false")
    diffusion_gemma_max_steps: int | None = _decoding(
        "maximum number of steps per canvas; default: 48", low=1, high=4096
    )
    diffusion_gemma_t_min: float | None = _decoding(
        "lower limit of a canvas's temperature; default: 0.4", low=0, above_low=True
    )
    diffusion_gemma_t_max: float | None = _decoding(
        "temperature of the first step of a canvas; default: 0.8", low=0, above_low=True
    )
    diffusion_gemma_entropy_bound: float | None = _decoding(
        "entropy bound of the tokens that a step accepts, in nats; default: 0.1", low=0, above_low=True
    )
    diffusion_gemma_stability_threshold: int | None = _decoding(
        "unchanged steps after which a canvas ends; default: 1", low=0, high=64
    )
    diffusion_gemma_confidence_threshold: float | None = _decoding(
        "entropy in nats below which an unchanged canvas ends; default: 0.005", low=0
    )
    disable_structured_complete: bool = _structured(
        "structured output may be cut at max_tokens instead of ending in its format", default=False
    )
    structured_max_length: int = _structured(
        "maximum characters of a JSON string whose schema has no maximum; 0: any number", default=32768, low=0
    )
    structured_max_items: int = _structured(
        "maximum items of a JSON array whose schema has no maximum; 0: any number", default=1024, low=0
    )
    structured_max_run: int = _structured(
        "maximum tokens of structured output that repeat the 1 to 8 tokens before them; 0: any number",
        default=256, low=0,
    )  # fmt: skip
    skip_tokenizer: bool = False  # Python API only: ids in, ids out

    def __post_init__(self) -> None:
        check_fields(self, (flag for flag in ENGINE_FLAGS if flag.dest != "dtype" or self.dtype != "float64"))
        if not isinstance(self.skip_tokenizer, bool):
            raise ConfigError(f"skip_tokenizer: {self.skip_tokenizer!r} is not true or false")
        self._check_combinations()

    @property
    def compile_mode(self) -> str | None:
        """Mode of `torch.compile`; None: nothing is compiled."""
        return None if self.disable_torch_compile else self.torch_compile_mode

    @property
    def default_adapter(self) -> str:
        """The name of the adapter of all requests; "" if it is merged or there is none."""
        return (self.lora_path or "").rstrip("/").rsplit("/", 1)[-1] if not self.pre_merge_lora else ""

    @property
    def adapters(self) -> dict[str, str]:
        """Name -> URI of the adapters that are served unmerged from the start."""
        if self.default_adapter and self.lora_path is not None:
            return {self.default_adapter: self.lora_path}
        return named_adapters(self.lora)

    @property
    def serves_adapters(self) -> bool:
        """Whether the model has slots for unmerged adapters."""
        return bool(self.adapters) or self.max_loras is not None

    def _check_combinations(self) -> None:
        """Raises ConfigError, with the flags and the fix, for unsupported combinations."""
        if self.use_lora != (self.lora_path is not None):
            raise ConfigError("--use-lora and --lora-path go together; give both, or leave both out")
        if self.pre_merge_lora and not self.use_lora:
            raise ConfigError("--pre-merge-lora: merges the adapter of --use-lora and --lora-path; give these too")
        named_adapters(self.lora)
        if self.lora and self.default_adapter:
            raise ConfigError(
                "--lora: with --use-lora all requests have one adapter; add --pre-merge-lora, or leave --use-lora out"
            )
        if self.max_lora_rank is not None and not self.serves_adapters:
            raise ConfigError(
                "--max-lora-rank: there are no adapters that requests name; give --lora or --max-loras too"
            )
        if self.expert_parallel_size not in (1, self.tensor_parallel_size):
            raise ConfigError(
                f"--expert-parallel-size {self.expert_parallel_size}: must be 1 or --tensor-parallel-size, "
                f"{self.tensor_parallel_size}"
            )
        if self.eos_token_ids is not None and self.mask_token_id in self.eos_token_ids:
            raise ConfigError(f"--eos-token-ids: {self.mask_token_id} is also --mask-token-id")
        if self.sampling_mode == "edit" and self.remask_threshold:
            raise ConfigError(
                f"--remask-threshold {self.remask_threshold:g}: only the threshold algorithm masks again, not "
                "--sampling-mode edit; leave it out"
            )
        self._check_exact()

    def _check_exact(self) -> None:
        many, compiles = self.tensor_parallel_size > 1, self.compile_mode is not None
        if self.deterministic and many:
            why, other = f"--deterministic: how sums of several ranks {_ROUNDED}", "--tensor-parallel-size"
        elif compiles and many:
            why, other = "--torch-compile-mode: sharded logits are not compiled", "--tensor-parallel-size"
        elif compiles and self.deterministic:
            why, other = f"--torch-compile-mode: how compiled sums {_ROUNDED}", "--deterministic"
        else:
            return
        raise ConfigError(f"{why}; leave it out, or {other}")

    @classmethod
    def from_flags(cls, **values: Any) -> EngineConfig:
        """Creates a configuration from arguments of ``LLM``: any flag of the engine, with underscores or dashes.

        Raises:
            ConfigError: A name is not a flag, or a flag of the server only, or a value is not supported.
        """
        fields = {f.name for f in dataclasses.fields(cls)}
        values_by_field: dict[str, Any] = {}
        for name, value in values.items():
            key = name.replace("-", "_")
            if key not in fields:
                flag = BY_SPELLING.get(key)
                if flag is None:
                    hint = did_you_mean(key, fields) or "; python -m runtime.server --help-all lists all flags"
                    raise ConfigError(f"{name}: no such flag{hint}")
                if not flag.engine:
                    raise ConfigError(f"{name}: a flag of the server, not of an engine in this process")
                key = flag.dest
            if key in values_by_field:
                raise ConfigError(f"{name}: given twice, under two names")
            if key == "lora" and isinstance(value, Mapping):
                value = tuple(f"{name}={uri}" for name, uri in value.items())
            values_by_field[key] = value
        return cls(**values_by_field)


ENGINE_FLAGS = declared_flags(EngineConfig, engine=True)


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """Configuration of a server and its engine, which is the same for every replica. Times are in seconds."""

    engine: EngineConfig = field(default_factory=EngineConfig)
    served_model_name: tuple[str, ...] = _model(
        "model id that requests name, repeatable; default: the directory's or repository's name",
        default=(), common=True, metavar="NAME",
    )  # fmt: skip
    chat_template: str | None = _model(
        "Jinja file of at most 1 MiB that replaces the checkpoint's chat template", metavar="FILE"
    )
    tool_call_parser: str | None = _model(
        "format of tool calls: hermes, gemma4, qwen3_coder, or off; default: that of the family", metavar="FORMAT"
    )
    reasoning_parser: str | None = _model(
        "format of reasoning: think, gemma4, or off; default: that of the family", metavar="FORMAT"
    )
    data_parallel_size: int = _parallel("number of replicas, each in its own backend process", default=1, low=1)
    num_nodes: int = _parallel("hosts per replica, each with the same number of devices", default=1, low=1)
    node_rank: int = _parallel("index of this host; host 0 serves HTTP, the others only run ranks", default=0, low=0)
    master_addr: str = _parallel(
        "address of node 0; connections are not authenticated, so use trusted networks only",
        default="localhost", metavar="HOST",
    )  # fmt: skip
    master_port: int | None = _parallel("port of node 0; required with --num-nodes", low=1, high=65535)
    device_ids: tuple[int, ...] | None = _parallel(
        "indices of the GPUs to use, first those of replica 0; default: 0, 1, ...", low=0, comma=True, metavar="ID,..."
    )
    lora_config: str | None = _adapters(
        "adapters that requests select: a YAML or JSON file that maps names to paths, or a directory with one "
        "file per name; it is read at start, and again when it changes",
        metavar="DIR|FILE",
    )
    lora_routes: bool = _adapters(
        "enable POST /v1/load_lora_adapter and /v1/unload_lora_adapter, with which clients can make the server "
        "read any path",
        default=False,
    )
    lora_routes_memory_gb: float | None = _adapters(
        "host memory that adapters loaded by requests may take in each engine process, in GB; default: an eighth of "
        "the machine's or container's, divided by the engine processes of the host",
        low=0, above_low=True, metavar="GB",
    )  # fmt: skip
    host: str = _server(
        "address or name to listen on; :: accepts other machines, over IPv6 and IPv4; UNMASK_DEFAULT_HOST, which "
        "the container image sets to ::, replaces the default",
        default="127.0.0.1", common=True,
    )  # fmt: skip
    port: int = _server("port to listen on; 0 selects a free port", default=8000, common=True, low=0, high=65535)
    log_level: Literal["critical", "error", "warning", "info", "debug"] = _server(
        "log level of all processes", default="info"
    )
    log_format: Literal["text", "json"] = _server("format of the log; json for log collectors", default="text")
    zmq_command_addr: str | None = _server(
        "address of the socket from the frontend to the backends, ipc://PATH; default: a private path", metavar="ADDR"
    )
    zmq_event_addr: str | None = _server(
        "address of the socket from the backends, ipc://PATH; default: a private path", metavar="ADDR"
    )
    api_key: tuple[str, ...] = _server(
        "bearer keys that clients must present, of at least 16 characters; every user of the machine sees them in "
        "the process list, so prefer --api-key-file or UNMASK_API_KEY",
        default=(), comma=True, secret=True, metavar="KEY,...",
    )  # fmt: skip
    api_key_file: str | None = _server(
        "file of API keys, one per line or comma-separated; read again when it changes", common=True, metavar="FILE"
    )
    cors_allow_origins: tuple[str, ...] = _server(
        "origins whose pages may send requests from a browser, or *; default: none",
        default=(), comma=True, metavar="ORIGIN,...",
    )  # fmt: skip
    allowed_hosts: tuple[str, ...] = _server(
        "further host names, without port, that clients without a key may use, or *; default: localhost and "
        "loopback addresses if --host is a loopback address, else any",
        default=(), comma=True, metavar="HOST,...",
    )  # fmt: skip
    strict_fields: bool = _server("reject unknown fields of requests instead of ignoring them", default=False)
    max_queue: int = _server(
        "maximum number of waiting requests, 429 beyond; one HTTP request with several completions (with several "
        "keys: one key) gets at most half of --max-queue and --max-num-reqs",
        default=1024, low=1,
    )  # fmt: skip
    frontend_processes: int = _server(
        "processes that serve HTTP for the same backends, for many short requests per second",
        default=1, low=1, high=64, aliases=("api-server-count",),
    )  # fmt: skip
    max_connections: int | None = _server(
        "maximum number of open connections; default: 4096, or what the limit of open files allows", low=1
    )
    max_connection_age_seconds: float = _server(
        "seconds after which an answer closes its kept-alive connection, so that clients reconnect and spread over new "
        "replicas; 0: no limit",
        default=0.0, low=0,
    )  # fmt: skip
    drain_delay: float = _server("seconds to keep serving after SIGTERM before the listener closes", default=0.0, low=0)
    drain_timeout: float = _server("seconds to let running requests finish", default=30.0, low=0)
    request_timeout: float = _server(
        "maximum seconds per request, including waiting; 0: no limit", default=600.0, low=0
    )
    profiler: Literal["torch"] | None = _server(
        "profiler of POST /start_profile and /stop_profile, which return 409 without it; requires --torch-profiler-dir"
    )
    torch_profiler_dir: str | None = _server("directory of the profiler's traces, one file per backend", metavar="DIR")
    # Keys of --api-key-file at start. Without --api-key and --api-key-file, clients need no key.
    keys_in_file: tuple[str, ...] = field(default=(), repr=False)
    notes: tuple[str, ...] = field(default=(), compare=False)  # messages for the log at start

    def __post_init__(self) -> None:
        check_fields(self, SERVER_FLAGS)
        self._check_combinations()

    def _check_combinations(self) -> None:
        self._check_nodes()
        object.__setattr__(self, "api_key", check_keys(self.api_key, "--api-key"))
        if both := set(self.model_names) & self.engine.adapters.keys():
            raise ConfigError(f"--lora: {min(both)!r} is the model's own name; give the adapter another")
        if self.lora_routes_memory_gb is not None and not self.lora_routes:
            raise ConfigError("--lora-routes-memory-gb: requests load no adapters; give --lora-routes too")
        if len(set(self.served_model_name)) != len(self.served_model_name):
            raise ConfigError("--served-model-name: the same name is given twice")
        for host in self.allowed_hosts:
            if host != "*" and not HOST_NAME.fullmatch(host):
                raise ConfigError(f"--allowed-hosts: {host!r} is not a host name or address; leave out scheme and port")
        if (self.profiler is None) != (self.torch_profiler_dir is None):
            raise ConfigError("--profiler and --torch-profiler-dir go together; give both, or leave both out")
        if (self.zmq_command_addr is None) != (self.zmq_event_addr is None):
            missing = "--zmq-event-addr" if self.zmq_event_addr is None else "--zmq-command-addr"
            raise ConfigError(f"{missing}: is required; give both addresses, or leave both out")
        for name in ("zmq_command_addr", "zmq_event_addr"):
            addr: str | None = getattr(self, name)
            if addr is not None and (not addr.startswith("ipc://") or addr.startswith("ipc://@")):
                raise ConfigError(
                    f"--{name.replace('_', '-')}: {addr!r} is not supported, as frontend and backends run on one "
                    "machine; use ipc://PATH, or leave the flag out"
                )
        if self.zmq_command_addr is not None and self.zmq_command_addr == self.zmq_event_addr:
            raise ConfigError("--zmq-event-addr: must differ from --zmq-command-addr")
        if self.device_ids is not None:
            if self.engine.device == "cpu":
                raise ConfigError("--device-ids: names GPUs, but --device is cpu")
            needed = self.data_parallel_size * self.devices_of_replica
            if len(set(self.device_ids)) != needed or len(self.device_ids) != needed:
                raise ConfigError(
                    f"--device-ids: needs {needed} different ids, {self.devices_of_replica} a replica "
                    f"(--tensor-parallel-size, --data-parallel-size, --num-nodes), got "
                    f"{','.join(map(str, self.device_ids)) or 'none'}"
                )

    def _check_nodes(self) -> None:
        nodes, size = self.num_nodes, self.engine.tensor_parallel_size
        if self.node_rank >= nodes:
            raise ConfigError(f"--node-rank {self.node_rank}: must be less than --num-nodes, {nodes}")
        if nodes == 1:
            if self.master_port is not None or self.master_addr != "localhost":
                raise ConfigError("--master-addr, --master-port: require --num-nodes above 1; leave them out")
            return
        if size % nodes:
            raise ConfigError(f"--num-nodes {nodes} does not divide --tensor-parallel-size {size}; give one that does")
        if self.data_parallel_size > 1:
            raise ConfigError(
                "--data-parallel-size: a replica on several hosts (--num-nodes) has a server of its own; leave it out"
            )
        if self.master_port is None:
            raise ConfigError("--master-port: needed with --num-nodes, the same on all hosts")

    @property
    def devices_of_replica(self) -> int:
        """Number of GPUs of a replica on this host."""
        return self.engine.tensor_parallel_size // self.num_nodes

    def devices_of(self, replica: int) -> tuple[int, ...]:
        """Returns the logical GPUs of a replica on this host."""
        count = self.devices_of_replica
        ids = self.device_ids or range((replica + 1) * count)
        return tuple(ids[replica * count : (replica + 1) * count])

    @property
    def fetches_adapters(self) -> bool:
        """Whether a backend may have to download adapters from the hub."""
        uris = [*self.engine.adapters.values(), self.engine.lora_path or ""]
        return self.lora_config is not None or self.lora_routes or any(uri.startswith("hf://") for uri in uris)

    @property
    def requires_key(self) -> bool:
        """Whether requests need an API key. With an empty file all requests are rejected."""
        return self.api_key_file is not None or bool(self.api_key)

    @property
    def model_names(self) -> tuple[str, ...]:
        """Model ids that clients may use; responses have the first."""
        return self.served_model_name or (default_model_name(self.engine.model),)

    def replace(self, **changes: Any) -> Self:
        return dataclasses.replace(self, **changes)


SERVER_FLAGS = declared_flags(ServerConfig)
# In the order of ``--help`` within each group. ``--config`` and ``--print-config`` are not fields.
FLAGS: tuple[Flag, ...] = (
    *ENGINE_FLAGS,
    *SERVER_FLAGS,
    Flag(
        name="config",
        group="server",
        common=True,
        metavar="FILE.yaml",
        help="YAML file of flags, one `name: value` per line",
    ),
    Flag(name="print-config", group="server", type="bool", default=False, help="print the resolved values and exit"),
)
BY_DEST: dict[str, Flag] = {flag.dest: flag for flag in FLAGS}
BY_SPELLING: dict[str, Flag] = {name.replace("-", "_"): flag for flag in FLAGS for name in flag.spellings}


def default_model_name(model: str | None) -> str:
    """Returns the name of the directory, the repository's ``org/name``, or the demo's name."""
    if model is None:
        return DEMO_NAME
    if model.startswith("hf://"):
        return model.removeprefix("hf://").split("@")[0].strip("/")
    return model.rstrip("/").rsplit("/", 1)[-1] or model

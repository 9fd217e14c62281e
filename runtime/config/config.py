"""Typed configuration, validated as far as possible without opening the checkpoint."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from runtime.config.adapters import named_adapters
from runtime.config.api_keys import check_keys
from runtime.config.flag_definitions import BY_DEST, BY_SPELLING
from runtime.config.flags import check
from runtime.config.suggestions import did_you_mean
from runtime.config.validation import validate_combinations
from runtime.errors import ConfigError

# A name, an IPv4 address or an IPv6 address without brackets, as `--allowed-hosts` takes it.
HOST_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?|[0-9A-Fa-f:]*:[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*")
DEMO_NAME = "unmask-demo"


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Configuration of one engine. ``None`` means "decided at start" (by checkpoint, device or docs/guide/decoding.md).

    Values are checked and converted on construction; a ConfigError names the flag.
    """

    model: str | None = None
    model_name: str | None = None
    plugin: tuple[str, ...] = ()
    decoding_strategy: str | None = None
    sampling_mode: Literal["naive", "edit"] | None = None
    mask_token_id: int | None = None
    eos_token_ids: tuple[int, ...] | None = None
    device: Literal["cpu", "cuda"] | None = None
    dtype: Literal["bfloat16", "float16", "float32", "float64"] | None = None  # float64: tests, through Python only
    quantization: Literal["fp8", "int8", "int4"] | None = None
    block_size: int | None = None
    buffer_size: int | None = None
    page_size: int | None = None
    max_model_len: int | None = None
    max_num_batched_tokens: int = 8192
    max_num_reqs: int = 128
    gpu_memory_utilization: float = 0.9
    num_pages: int | None = None
    kv_cache_layout: Literal["unified", "distinct"] = "unified"
    use_lora: bool = False
    lora_path: str | None = None
    pre_merge_lora: bool = False
    lora: tuple[str, ...] = ()
    max_loras: int | None = None
    max_lora_rank: int | None = None
    attn_impl: Literal["triton_grouped", "triton", "torch"] | None = None
    tensor_parallel_size: int = 1
    expert_parallel_size: int = 1
    distributed_timeout_seconds: float = 600.0
    disable_full_static_runner: bool = False
    enforce_eager: bool = False
    deterministic: bool = False
    disable_torch_compile: bool = False
    torch_compile_mode: Literal["default", "max-autotune-no-cudagraphs"] | None = None
    disable_prefix_caching: bool = False
    skip_tokenizer: bool = False  # Python API only: ids in, ids out
    # decoding defaults of the server; None: the family's, else those of docs/guide/decoding.md
    add_block_threshold: float | None = None
    semi_complete_threshold: float | None = None
    accept_threshold: float | None = None
    edit_threshold: float | None = None
    remask_threshold: float | None = None
    token_stability_threshold: float | None = None
    max_post_edit_steps: int | None = None
    penalty_lambda: float | None = None
    full_cache: Literal["prefix", "dual", "vicinity"] | None = None
    token_merge_mode: Literal["dmax_topk", "iter_smooth_topk"] | None = None
    token_merge_top_k: int | None = None
    token_merge_renormalize: bool | None = None
    token_merge_weight: float | None = None
    diffusion_gemma_max_steps: int | None = None
    diffusion_gemma_t_min: float | None = None
    diffusion_gemma_t_max: float | None = None
    diffusion_gemma_entropy_bound: float | None = None
    diffusion_gemma_stability_threshold: int | None = None
    diffusion_gemma_confidence_threshold: float | None = None

    def __post_init__(self) -> None:
        for name in (f.name for f in dataclasses.fields(self) if f.name in BY_DEST):
            value = getattr(self, name)
            if name == "dtype" and value == "float64":
                continue
            object.__setattr__(self, name, check(BY_DEST[name], value))
        if not isinstance(self.skip_tokenizer, bool):
            raise ConfigError(f"skip_tokenizer: {self.skip_tokenizer!r} is not true or false")
        validate_combinations(self)

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


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """Configuration of a server and its engine, which is the same for every replica. Times are in seconds."""

    engine: EngineConfig = field(default_factory=EngineConfig)
    served_model_name: tuple[str, ...] = ()  # see model_names
    chat_template: str | None = None
    tool_call_parser: str | None = None
    reasoning_parser: str | None = None
    lora_config: str | None = None
    lora_routes: bool = False
    data_parallel_size: int = 1
    device_ids: tuple[int, ...] | None = None  # those of replica 0 first, one per process
    num_nodes: int = 1
    node_rank: int = 0
    master_addr: str = "localhost"
    master_port: int | None = None
    host: str = "127.0.0.1"
    port: int = 8000
    log_level: Literal["critical", "error", "warning", "info", "debug"] = "info"
    log_format: Literal["text", "json"] = "text"
    zmq_command_addr: str | None = None
    zmq_event_addr: str | None = None
    api_key: tuple[str, ...] = field(default=(), repr=False)
    api_key_file: str | None = None
    keys_in_file: tuple[str, ...] = field(default=(), repr=False)  # at start; without keys and file, clients need none
    cors_allow_origins: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    strict_fields: bool = False
    profiler: Literal["torch"] | None = None
    torch_profiler_dir: str | None = None
    frontend_processes: int = 1
    max_queue: int = 1024
    max_connections: int | None = None
    drain_delay: float = 0.0
    drain_timeout: float = 30.0
    request_timeout: float = 600.0  # 0: no limit
    notes: tuple[str, ...] = field(default=(), compare=False)  # messages for the log at start

    def __post_init__(self) -> None:
        for name in (f.name for f in dataclasses.fields(self) if f.name in BY_DEST):
            object.__setattr__(self, name, check(BY_DEST[name], getattr(self, name)))
        self._check_combinations()

    def _check_combinations(self) -> None:
        self._check_nodes()
        object.__setattr__(self, "api_key", check_keys(self.api_key, "--api-key"))
        if both := set(self.model_names) & self.engine.adapters.keys():
            raise ConfigError(f"--lora: {min(both)!r} is the model's own name; give the adapter another")
        if len(set(self.served_model_name)) != len(self.served_model_name):
            raise ConfigError("--served-model-name: the same name is given twice")
        for host in self.allowed_hosts:
            if host != "*" and not HOST_NAME.fullmatch(host):
                raise ConfigError(f"--allowed-hosts: {host!r} is not a host name or address; leave out scheme and port")
        if (self.profiler is None) != (self.torch_profiler_dir is None):
            raise ConfigError("--profiler and --torch-profiler-dir go together; give both, or leave both out")
        if (self.zmq_command_addr is None) != (self.zmq_event_addr is None):
            missing = "--zmq-event-addr" if self.zmq_event_addr is None else "--zmq-command-addr"
            raise ConfigError(f"{missing}: needed too, the two addresses are given together")
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
                raise ConfigError(
                    "--master-addr, --master-port: are where the hosts of a replica meet, and --num-nodes is 1; leave "
                    "them out"
                )
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
    def model_names(self) -> tuple[str, ...]:
        """Model ids that clients may use; responses have the first."""
        return self.served_model_name or (default_model_name(self.engine.model),)

    def replace(self, **changes: Any) -> Self:
        return dataclasses.replace(self, **changes)


def default_model_name(model: str | None) -> str:
    """Returns the name of the directory, the repository's ``org/name``, or the demo's name."""
    if model is None:
        return DEMO_NAME
    if model.startswith("hf://"):
        return model.removeprefix("hf://").split("@")[0].strip("/")
    return model.rstrip("/").rsplit("/", 1)[-1] or model

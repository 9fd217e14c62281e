"""Whether a model fits into the memory of a device: sizes from config.json alone, and the flags with which it fits."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast, get_args, get_type_hints

import torch
from torch import nn

from runtime.config import EngineConfig
from runtime.distributed.process_group import TensorParallelGroup
from runtime.errors import ConfigError, is_out_of_memory
from runtime.layers.kv_pool import CPU_POOL_BYTES, LAYOUTS
from runtime.layers.layer_factory import FP8_LM_HEAD_NEEDS
from runtime.layers.lm_head import LMHead
from runtime.models.base import Model, ModelFamily
from runtime.parameters.weight import named_weights
from runtime.quantization.fp8 import MIN_COMPUTE_CAPABILITY
from runtime.scheduling.strategy import LENGTH_STEP, Strategy, longest_request, max_request_pages
from runtime.weights.weight_formats import Formats, meta_model
from runtime.worker.candidates import LOGITS_CHUNK_ROWS, SAMPLING_CHUNK_ROWS

PAGE_SIZE = 32  # tokens, the default of --page-size
SHORTEST = 256  # tokens; with memory for less, the server does not start unless --max-model-len is set
MAX_RANKS = 16  # proposed for --tensor-parallel-size

_QUANTIZATIONS: tuple[str, ...] = get_args(get_args(get_type_hints(EngineConfig)["quantization"])[0])
_MEMORY = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class DeviceMemory:
    """Memory of a device before weights are loaded.

    Attributes:
        name: The device, as messages name it.
        free: Bytes.
        kind: "cuda" or "cpu".
        capability: Compute capability of a GPU.
    """

    name: str
    free: int
    kind: str
    capability: tuple[int, int] | None = None

    @classmethod
    def of(cls, device: torch.device, free: int) -> DeviceMemory | None:
        """Returns the memory of a device; None if Linux does not report that of the host.

        Args:
            free: Bytes of a GPU that are free. On a CPU, the available memory of the host counts.
        """
        if device.type == "cuda":
            name, capability = torch.cuda.get_device_name(device), torch.cuda.get_device_capability(device)
            return cls(name, free, "cuda", capability)
        memory = available_memory()
        return None if memory is None else cls("this host", memory, "cpu")


@dataclass(frozen=True)
class Footprint:
    """Bytes of a model on each of its devices.

    Attributes:
        weights: All weights of a rank, and the e4m3 copy of the LM head.
        page: A page of the KV cache.
        page_size: Tokens of a page.
        pages: Pages of one request of --max-model-len.
        step: An estimate of what the largest step needs: the widest activations, or the logits and their sampling. The
            server measures it at start. CUDA graphs add to it.
    """

    weights: int
    page: int
    page_size: int
    pages: int
    step: int

    @property
    def kv_per_token(self) -> int:
        return self.page // self.page_size


@dataclass(frozen=True)
class Sizing:
    """What determines the memory of a model.

    Attributes:
        arch: Result of ``family.parse``.
        vocab_size: Of the model.
        dtype: Of weights and KV pool.
        quantization: Format of the weights, or several, joined with +.
        formats: Format of each weight of a quantized checkpoint, for which --quantization has no other value; {} if
            it is not quantized.
        group: The tensor parallel group of the rank.
        shardable: Whether the weights can be sharded over several ranks.
    """

    config: EngineConfig
    family: ModelFamily[Any]
    arch: Any
    vocab_size: int
    strategy: Strategy
    max_model_len: int
    dtype: torch.dtype
    quantization: str | None
    formats: Formats
    group: TensorParallelGroup
    shardable: bool = True

    @cached_property
    def meta_model(self) -> Model:
        """The model of a rank on the meta device. Raises as `runtime.weights.weight_formats.meta_model`."""
        group = TensorParallelGroup(self.group.rank, self.group.size)  # without connections
        return meta_model(
            self.family, self.arch, self.dtype, self.quantization, formats=self.formats, group=group,
            expert_parallel=self.config.expert_parallel_size > 1,
        )  # fmt: skip

    def footprint(self) -> Footprint:
        """Returns the bytes of the model. Raises as `meta_model`."""
        model, config = self.meta_model, self.config
        weights = named_weights(cast(nn.Module, model)).values()
        page_size = config.page_size or PAGE_SIZE
        rows = config.max_num_batched_tokens
        widest = max((weight.shape[-2] for weight in weights if len(weight.shape) > 1), default=0)
        activations = 2 * rows * min(widest, self.vocab_size) * self.dtype.itemsize
        # The step of the warm-up samples every row, in chunks; sampling takes eight times the logits of its chunk.
        logits = 4 * self.vocab_size // self.group.size
        sampling = logits * (min(rows, LOGITS_CHUNK_ROWS) + 8 * min(rows, SAMPLING_CHUNK_ROWS))
        return Footprint(
            weights=sum(weight.nbytes for weight in weights) + self._head_copy(),
            page=LAYOUTS[config.kv_cache_layout].page_bytes(model.kv_shapes, page_size, self.dtype),
            page_size=page_size,
            pages=max_request_pages(self.strategy, self.max_model_len, page_size),
            step=max(activations, sampling),
        )

    def _head_copy(self) -> int:
        """Returns the bytes of the e4m3 copy of the LM head with --quantized-lm-head, which has a scale per row."""
        head = self.meta_model.lm_head
        if not self.config.quantized_lm_head or self.quantization != "fp8" or not isinstance(head, LMHead):
            return 0
        return head.weight.size + 4 * head.weight.shape[0]

    def budget(self, device: DeviceMemory) -> int:
        """Returns the bytes of a device that weights and KV cache may take."""
        if device.kind == "cuda" and self.config.num_pages is None:
            return int(device.free * self.config.gpu_memory_utilization)
        return device.free

    def kv_bytes(self, size: Footprint) -> int:
        """Returns the bytes of the smallest KV cache with which the server starts."""
        return size.page * (self.config.num_pages or size.pages)

    def longest(self, device: DeviceMemory | None, *, with_step: bool = False) -> int:
        """Returns the largest length up to `max_model_len` for which the KV cache can hold a request; 0 if none.

        Args:
            device: None: its memory is not known, as on a host without Linux.
            with_step: whether the largest step, which is an estimate, takes memory of a GPU too.
        """
        size, pages = self.footprint(), self.config.num_pages
        if pages is None:
            left = CPU_POOL_BYTES
            if device is not None:
                own = self.budget(device) - size.weights
                left = own - with_step * size.step if device.kind == "cuda" else min(left, own)
            pages = left // size.page
        return longest_request(self.strategy, self.max_model_len, size.page_size, pages)

    def fits(self, device: DeviceMemory, *, with_step: bool = False) -> bool:
        """Whether weights and the smallest KV cache fit; `with_step`: also the largest step, which is an estimate."""
        size = self.footprint()
        return size.weights + self.kv_bytes(size) + with_step * size.step <= self.budget(device)

    def refusal(self, device: DeviceMemory) -> str:
        """Returns why the server does not start on the device, and the flags with which it does; "" if it starts."""
        if self.config.quantized_lm_head and (
            device.kind != "cuda" or self.quantization != "fp8" or self.config.deterministic
        ):
            return FP8_LM_HEAD_NEEDS
        size, budget = self.footprint(), self.budget(device)
        kv = self.kv_bytes(size)
        if size.weights + kv <= budget:
            return ""
        pages = self.config.num_pages
        cache = f"--num-pages {pages}" if pages else f"one request of --max-model-len {self.max_model_len}"
        has = f"{device.name} has {gigabytes(device.free)} of memory available"
        if budget != device.free:
            has += f", and --gpu-memory-utilization {self.config.gpu_memory_utilization:g} allows {gigabytes(budget)}"
        return (
            f"the model's weights ({gigabytes(size.weights)}) and the KV cache of {cache} ({gigabytes(kv)}) do not fit "
            f"in memory: {has}; {self._remedy(device, size)}"
        )

    def check(self, device: DeviceMemory | None) -> None:
        """Raises ConfigError if the server does not start on the device. None: its memory is not known."""
        if device is not None and (reason := self.refusal(device)):
            raise ConfigError(reason)

    @contextlib.contextmanager
    def explain_out_of_memory(self, device: DeviceMemory | None) -> Iterator[None]:
        """Replaces an allocator's error while weights are loaded: other programs may have taken memory meanwhile."""
        try:
            yield
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            why = " ".join(str(error).split()) or type(error).__name__
            sizes = [] if device is None else [each.footprint().weights for each in self.quantizations(device)]
            smaller = f"set --quantization (weights: {gigabytes(min(sizes))} or more), or " if sizes else ""
            what = f"the model's weights ({gigabytes(self.footprint().weights)})"
            raise ConfigError(
                f"{what} do not fit in memory ({why}); {smaller}end other programs on the device"
            ) from error

    def quantizations(self, device: DeviceMemory) -> Iterator[Sizing]:
        """Yields this with each --quantization that makes the model smaller and that the device supports."""
        if self.formats or self.dtype == torch.float64:
            return
        size = self.footprint().weights
        for name in _QUANTIZATIONS:
            old = device.capability is not None and device.capability < MIN_COMPUTE_CAPABILITY
            if name == self.quantization or (name == "fp8" and old):
                continue
            smaller = replace(self, quantization=name)
            with contextlib.suppress(ConfigError):  # for example, int4 needs inputs that are a multiple of 128
                if smaller.footprint().weights < size:
                    yield smaller

    def _remedy(self, device: DeviceMemory, size: Footprint) -> str:
        """Returns the flags with which the model fits; without any, which memory it needs."""
        left = self.budget(device) - size.weights - size.step
        shortest = self.max_model_len if self.config.max_model_len else min(SHORTEST, self.max_model_len)
        if self.config.num_pages and left >= size.page * max_request_pages(self.strategy, shortest, size.page_size):
            return f"set a smaller --num-pages, at most {left // size.page}"
        plain = replace(self, config=replace(self.config, num_pages=None))
        smaller = list(plain.quantizations(device))
        remedies = []
        length = left // size.page * size.page_size // LENGTH_STEP * LENGTH_STEP
        if not self.config.num_pages and length > 0:
            remedies.append(f"--max-model-len {length}")
        for with_step, more in ((True, ""), (False, " with a smaller --max-num-batched-tokens")):
            found = next((each for each in smaller if each.fits(device, with_step=with_step)), None)
            if found is not None:
                remedies.append(
                    f"--quantization {found.quantization} (weights: {gigabytes(found.footprint().weights)}){more}"
                )
                break
        if ranks := plain._ranks_that_fit(device):
            remedies.append(f"--tensor-parallel-size {ranks}")
        pages = "a smaller --num-pages, and " if self.config.num_pages else ""
        if remedies:
            return f"set {pages}{', or '.join(remedies)}"
        least = min((each.footprint() for each in (plain, *smaller)), key=lambda each: each.weights)
        share = self.budget(device) / device.free if device.free else 1.0
        needed = (least.weights + least.page * least.pages + least.step) / share
        return f"{f'set {pages}' if pages else ''}use a device with at least {gigabytes(needed)}"

    def _ranks_that_fit(self, device: DeviceMemory) -> int:
        """Returns the smallest --tensor-parallel-size, a power of 2, with which the model fits; 0 if none does."""
        size = 2 * self.group.size
        while device.kind == "cuda" and self.shardable and size <= MAX_RANKS:
            with contextlib.suppress(ConfigError):  # it does not divide the heads
                if replace(self, group=TensorParallelGroup(0, size)).fits(device, with_step=True):
                    return size
            size *= 2
        return 0


def gigabytes(count: float) -> str:
    """Returns bytes as text, in GB of 10^9 bytes, or in MB of 10^6."""
    if count < 1e8:
        return f"{count / 1e6:.1f} MB"
    return f"{count / 1e9:.{1 if count >= 1e10 else 2}f} GB"


def available_memory() -> int | None:
    """Returns the bytes of memory that new programs can get on this host or in this container, with swap space.

    None if Linux does not report them.
    """
    try:
        lines = _MEMORY.read_text().splitlines()
    except OSError:
        return None
    fields = {line.split(":")[0]: 1024 * int(line.split()[1]) for line in lines if ":" in line}
    if "MemAvailable" not in fields:
        return None
    available = fields["MemAvailable"] + fields.get("SwapFree", 0)
    with contextlib.suppress(OSError, ValueError):  # only a container with cgroup v2 has the file; it may say "max"
        limit = int((_CGROUP / "memory.max").read_text())
        stat = dict(line.split() for line in (_CGROUP / "memory.stat").read_text().splitlines())
        reclaimable = sum(int(stat.get(name, 0)) for name in ("inactive_file", "active_file", "slab_reclaimable"))
        used = int((_CGROUP / "memory.current").read_text()) - reclaimable
        available = min(available, limit - used + _swap_of_container(fields.get("SwapFree", 0)))
    return available


def _swap_of_container(free: int) -> int:
    """Returns the bytes of swap space that the container can get, of those that are `free` on the host."""
    try:
        limit = (_CGROUP / "memory.swap.max").read_text().strip()
        used = int((_CGROUP / "memory.swap.current").read_text())
    except OSError:
        return 0
    return free if limit == "max" else max(0, min(free, int(limit) - used))

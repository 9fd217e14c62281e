"""Specializations of kernels: what Triton compiles a kernel for, as text that another process can compile from.

The text is Triton's own: ``JITFunction.preload`` reads the same format. It has the name of the kernel, the types and
alignment of its arguments, its constants and its options.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from runtime.kernels.common import tl, triton

ALLOCATIONS = (torch.empty, torch.empty_like, torch.empty_strided, torch.Tensor.new_empty)

# Triton computes these from the target, or they name files of the machine where the specialization was recorded.
DERIVED_OPTIONS = {
    "arch", "supported_fp8_dtypes", "deprecated_fp8_dot_operand_dtypes", "max_num_imprecise_acc_default", "extern_libs",
}  # fmt: skip


class KernelNotCached(Exception):
    """The cache has no compiled kernel for a launch."""


class _ZeroAllocations(TorchFunctionMode):
    """Fills allocated memory with zeros, because a kernel that is not launched does not write its outputs.

    Later operations then index with 0 instead of any number.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in ALLOCATIONS and not result.is_meta:
            result.zero_()
        return result


class _NotLaunched:
    """Replaces a compiled kernel. A launch does nothing."""

    function = packed_metadata = None

    def launch_metadata(self, *_: Any) -> None:
        pass

    def run(self, *_: Any) -> None:
        pass


@contextmanager
def record_specializations() -> Iterator[dict[str, None]]:
    """Records the specializations of kernels that are not compiled yet, instead of compiling and launching them.

    The results of computations in this context are not valid.

    Yields:
        The specializations, in the order of their first use. It grows while the context is active.
    """
    found: dict[str, None] = {}
    replaced: list[tuple[dict[str, Any], str]] = []

    def record(*, fn: Any, compile: dict[str, Any], **_: Any) -> bool:
        found[compile["specialization_data"]] = None
        kernels = fn.jit_function.device_caches[compile["device"]][0]
        kernels[compile["key"]] = _NotLaunched()  # so that a later launch costs as little as one of a compiled kernel
        replaced.append((kernels, compile["key"]))
        return True  # neither compile nor launch

    previous, triton.knobs.runtime.jit_cache_hook = triton.knobs.runtime.jit_cache_hook, record
    try:
        with _ZeroAllocations():
            yield found
    finally:
        triton.knobs.runtime.jit_cache_hook = previous
        for kernels, key in replaced:
            del kernels[key]


@contextmanager
def require_cached_kernels() -> Iterator[None]:
    """Launches only kernels that are compiled. The first launch of another one raises KernelNotCached."""

    def check(*, compile: dict[str, Any], **_: Any) -> bool:
        text = compile["specialization_data"]
        if missing_from_cache([text], triton.runtime.driver.active.get_current_target()):
            raise KernelNotCached(json.loads(text)["name"])
        return False  # Triton loads it from the cache and launches it

    previous, triton.knobs.runtime.jit_cache_hook = triton.knobs.runtime.jit_cache_hook, check
    try:
        yield
    finally:
        triton.knobs.runtime.jit_cache_hook = previous


def read_specialization(text: str) -> tuple[Any, dict[str, Any]]:
    """Returns the source (``triton.compiler.ASTSource``) of a specialization, and its options.

    Raises:
        AttributeError, ModuleNotFoundError: this version has no such kernel.
    """
    spec = json.loads(text)
    module, _, name = spec["name"].rpartition(".")
    kernel = getattr(importlib.import_module(module), name)
    constants = {
        tuple(key): _read_constant(value)
        for key, value in zip(spec["constant_keys"], spec["constant_vals"], strict=True)
    }
    attributes = dict(zip(map(tuple, spec["attrs_keys"]), spec["attrs_vals"], strict=True))
    signature = {key: _tuples(value) for key, value in spec["signature"].items()}
    options = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in spec["options"].items()
        if key not in DERIVED_OPTIONS
    }
    return triton.compiler.ASTSource(kernel, signature, constants, attributes), options


def _read_constant(value: Any) -> Any:
    if isinstance(value, dict) and "constexpr" in value:
        return tl.constexpr(value["constexpr"])
    if isinstance(value, str) and tl.dtype.is_dtype(value):
        return tl.dtype(value)
    return value


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def compile_specialization(text: str, target: Any, *, launcher: bool) -> None:
    """Compiles a specialization for a target into the cache. No device is needed.

    Args:
        target: ``triton.backends.compiler.GPUTarget``.
        launcher: also compile the C code that launches it, which is linked with the driver's library.
    """
    source, options = read_specialization(text)
    kernel = triton.compile(source, target=target, options=options)
    if launcher:
        from triton.backends.nvidia.driver import CudaLauncher

        with contextlib.suppress(ImportError):  # it is in the cache, but cannot be loaded where there is no driver
            CudaLauncher(kernel.src, kernel.metadata)


def missing_from_cache(texts: Sequence[str], target: Any) -> list[str]:
    """Returns the specializations without a compiled kernel in the cache.

    Kernels that another process cannot import are left out, such as those that a plugin defines in a function.
    """
    from triton._C.libtriton import get_cache_invalidating_env_vars
    from triton.compiler.compiler import make_backend
    from triton.runtime import cache

    backend, env = make_backend(target), get_cache_invalidating_env_vars()
    missing = []
    for text in texts:
        try:
            source, options = read_specialization(text)
        except (AttributeError, ImportError):
            continue
        key = cache.get_cache_key(source, backend, backend.parse_options(options), env_vars=env)
        manager = cache.get_cache_manager(hashlib.sha256(key.encode()).hexdigest())
        name = f"{source.name[:150]}.json"
        if name not in (manager.get_group(name) or {}):
            missing.append(text)
    return missing

"""Safetensors into a built module: every tensor used, every parameter filled, or start-up ends naming them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import TypeVar, cast

import torch
from torch import nn

from runtime.errors import ConfigError
from runtime.layers.build import Build
from runtime.models.base import Family, Model
from runtime.models.weight_map import Slot, WeightMap
from runtime.weights.checkpoint import Checkpoint, TensorFile, summary
from runtime.weights.hub import Progress

Arch = TypeVar("Arch")
Held = tuple[TensorFile, str]  # a tensor of a checkpoint: the open file, and its name there


def load_model(
    checkpoint: Checkpoint,
    family: Family[Arch],
    arch: Arch,
    build: Build,
    progress: Progress | None = None,
) -> Model:
    """Build the family's model for `arch` (what ``family.parse(checkpoint.config)`` returned) and fill it.

    `progress(phase, bytes_done, bytes_total)` is called after each tensor. Raises ConfigError as `fill` does.
    """
    model = family.make(arch, build)
    fill(cast(nn.Module, model), checkpoint, family.weights(arch), progress)
    return model


def fill(module: nn.Module, checkpoint: Checkpoint, weights: WeightMap, progress: Progress | None = None) -> None:
    """Copy the checkpoint's tensors into `module`'s parameters, cast to their dtype and device.

    Raises:
        ConfigError: a tensor is missing, unknown, misshapen, not floating point, or holds NaN or infinities (also
            those that only the cast makes), or a parameter is left unfilled.
    """
    params = dict(module.named_parameters())
    files = checkpoint.tensor_files()
    weights = weights.of({weights.rename(name) for name in files})
    targets = {name: _view(params, slot) for name, slot in weights.slots.items()}
    _check_coverage(params, targets, weights)
    files = _match(checkpoint, files, weights)
    with ExitStack() as stack:
        handles = {file: stack.enter_context(checkpoint.tensors(file)) for file in set(files.values())}
        sources: dict[str, Held] = {}
        copies: dict[str, list[Held]] = {}
        for stored, file in files.items():
            held = handles[file], stored
            if sources.setdefault(name := weights.rename(stored), held) is not held:
                copies.setdefault(name, []).append(held)
        _check_shapes(sources, targets, checkpoint)
        total = sum(t.numel() * t.element_size() for t in targets.values())
        done = 0
        for name in _in_file_order(sources, targets):
            handle, stored = sources[name]
            tensor, target = handle.get_tensor(stored), targets[name]
            for other, copy in copies.get(name, ()):
                if not _same(tensor, other.get_tensor(copy)):
                    raise ConfigError(
                        f"{checkpoint.path} holds {stored!r} and {copy!r}, which are one tensor in this family, with "
                        "different values"
                    )
            if not tensor.is_floating_point() or tensor.element_size() < 2:
                raise ConfigError(f"tensor {stored!r} of {checkpoint.path} is {tensor.dtype}: quantised weights cannot "
                                  "be loaded; use a checkpoint in bfloat16, float16 or float32")  # fmt: skip
            target.copy_(tensor if (through := weights.slots[name].through) is None else through(tensor))
            if not bool(torch.isfinite(target).all()):
                kind = "NaN or infinite values" if not bool(torch.isfinite(tensor).all()) else (
                    f"values too large for {target.dtype}; choose another --dtype")  # fmt: skip
                raise ConfigError(f"tensor {stored!r} of {checkpoint.path} holds {kind}")
            done += target.numel() * target.element_size()
            if progress is not None:
                progress("weights", done, total)


def _view(params: dict[str, nn.Parameter], slot: Slot) -> torch.Tensor:
    return params[slot.param].data[slot.index] if slot.index else params[slot.param].data


def _check_coverage(params: dict[str, nn.Parameter], targets: dict[str, torch.Tensor], weights: WeightMap) -> None:
    """A family's own mistake, not a checkpoint's: its map must reach each element of each parameter once."""
    filled = dict.fromkeys(params, 0)
    for name, slot in weights.slots.items():
        filled[slot.param] += targets[name].numel()
    wrong = [name for name, p in params.items() if filled[name] != p.numel()]
    if wrong:
        raise AssertionError(f"the family's weight map does not fill {summary(wrong)} exactly once")


def _match(checkpoint: Checkpoint, stored: dict[str, str], weights: WeightMap) -> dict[str, str]:
    """Stored tensor name -> file, skips left out; ConfigError unless they are exactly the family's."""
    files = {n: f for n, f in stored.items() if not weights.skip(weights.rename(n))}
    known = [weights.rename(name) for name in files]
    if len(set(known)) != len(known) and not weights.copies:
        twice = sorted({n for n in known if known.count(n) > 1})
        raise ConfigError(f"{checkpoint.path} holds {summary(twice)} more than once, under different names")
    missing = sorted(weights.slots.keys() - set(known))
    extra = sorted(name for name in files if weights.rename(name) not in weights.slots)
    if missing or extra:
        parts = [f"{len(missing)} missing: {summary(missing)}"] if missing else []
        parts += [f"{len(extra)} unknown: {summary(extra)}"] if extra else []
        raise ConfigError(f"{checkpoint.path} does not hold the tensors its config.json implies ({'; '.join(parts)})")
    return files


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and torch.equal(a, b)


def _check_shapes(sources: dict[str, Held], targets: dict[str, torch.Tensor], checkpoint: Checkpoint) -> None:
    wrong = []
    for name, target in targets.items():
        handle, stored = sources[name]
        shape = list(handle.get_slice(stored).get_shape())
        if shape != list(target.shape):
            wrong.append(f"{stored} is {shape}, not {list(target.shape)}")
    if wrong:
        raise ConfigError(f"{checkpoint.path} holds tensors whose shape config.json does not imply: {summary(wrong)}")


def _in_file_order(sources: dict[str, Held], targets: dict[str, torch.Tensor]) -> Iterator[str]:
    """File by file, so that each is read from its beginning to its end."""
    return iter(sorted(targets, key=lambda name: (id(sources[name][0]), sources[name][1])))

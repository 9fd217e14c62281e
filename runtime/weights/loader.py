"""Safetensors into a built module: every tensor used, every weight filled, or start-up ends naming them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from typing import TypeVar, cast

import numpy as np
import torch
from torch import nn

from runtime.errors import ConfigError
from runtime.layers.build import Build
from runtime.layers.share import Index, Part
from runtime.layers.weight import Weight, weights_of
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

    `progress(phase, bytes_done, bytes_total)` is called after each tensor. Raises ConfigError as `fill` does; for a
    config.json that does not describe these files before anything of the size that it states is allocated.
    """
    weights = family.weights(arch)
    try:
        drawn = sketch(family, arch, build.dtype)
    except RuntimeError as error:
        raise ConfigError(f"{checkpoint.path}: config.json states sizes that no tensor can have: {error}") from None
    with ExitStack() as stack:
        _open(cast(nn.Module, drawn), checkpoint, weights, stack)
    model = family.make(arch, build)
    fill(cast(nn.Module, model), checkpoint, weights, progress)
    return model


def sketch(family: Family[Arch], arch: Arch, dtype: torch.dtype) -> Model:
    """The model without memory, whatever it will compute with: names and shapes of its weights, as a checkpoint has
    them, are the same in every format and on every device."""
    return family.make(arch, Build.choose("meta", dtype, "torch"))


def fill(module: nn.Module, checkpoint: Checkpoint, weights: WeightMap, progress: Progress | None = None) -> None:
    """Hand the checkpoint's tensors, one at a time, to `module`'s weights, which take them in their own format.

    Raises:
        ConfigError: a tensor is missing, unknown, misshapen, not floating point, or holds NaN or infinities (also
            those that only the cast makes).
    """
    params = weights_of(module)
    with ExitStack() as stack:
        sources, copies, slots = _open(module, checkpoint, weights, stack)
        total, done = sum(weight.nbytes for weight in params.values()), 0
        taken = dict.fromkeys(params, 0)
        for name in _in_file_order(sources, slots):
            held, slot = sources[name], slots[name]
            weight, before = params[slot.param], taken[slot.param]
            read = _reader(held, copies.get(name, ()), whole=weight.share is None)
            try:
                if slot.through is None:
                    taken[slot.param] += weight.fill_from(slot.index, read)
                else:
                    taken[slot.param] += weight.fill(slot.index, slot.through(read(())))
            except ConfigError as error:
                raise ConfigError(f"tensor {held[1]!r} of {checkpoint.path} {error}") from None
            done += weight.nbytes * taken[slot.param] // weight.size - weight.nbytes * before // weight.size
            if progress is not None:
                progress("weights", done, total)
    wrong = [name for name, weight in params.items() if taken[name] != weight.size]
    if wrong:
        raise AssertionError(f"the format of {summary(wrong)} did not take each element that it keeps once")


def _reader(held: Held, copies: Iterable[Held], *, whole: bool) -> Callable[[Index], torch.Tensor]:
    """What reads a box of a tensor, `()` being all of it, and no more than that; unless it is `whole`: all at once is
    quicker then. It raises ConfigError, worded to follow the tensor's name."""

    def part(of: Held, box: Index) -> torch.Tensor:
        handle, name = of
        if whole or not box:
            return handle.get_tensor(name)
        return handle.get_slice(name)[box]

    def read(box: Index) -> torch.Tensor:
        tensor = part(held, box)
        for copy in copies:
            if not _same(tensor, part(copy, box)):
                raise ConfigError(f"and {copy[1]!r} there are one tensor in this family, but have different values")
        if not tensor.is_floating_point() or tensor.element_size() < 2:
            raise ConfigError(
                f"is {tensor.dtype}: quantised weights cannot be loaded; use a checkpoint in bfloat16, float16 or "
                "float32"
            )
        return tensor

    return read


def _open(
    module: nn.Module, checkpoint: Checkpoint, weights: WeightMap, stack: ExitStack
) -> tuple[dict[str, Held], dict[str, list[Held]], Mapping[str, Slot]]:
    """The checkpoint's tensors by the family's names, those that hold one of them again, and where each belongs.

    ConfigError unless they are the weights of `module`, names and shapes; no tensor is read for it.
    """
    params = weights_of(module)
    files = checkpoint.tensor_files()
    weights = weights.of({weights.rename(name) for name in files})
    parts = {name: Part.of(params[slot.param].whole, slot.index) for name, slot in weights.slots.items()}
    _check_coverage(module, params, parts, weights)
    files = _match(checkpoint, files, weights)
    handles = {file: stack.enter_context(checkpoint.tensors(file)) for file in set(files.values())}
    sources: dict[str, Held] = {}
    copies: dict[str, list[Held]] = {}
    for stored, file in files.items():
        held = handles[file], stored
        if sources.setdefault(name := weights.rename(stored), held) is not held:
            copies.setdefault(name, []).append(held)
    _check_shapes(sources, parts, checkpoint)
    return sources, copies, weights.slots


def _check_coverage(module: nn.Module, params: dict[str, Weight], parts: dict[str, Part], weights: WeightMap) -> None:
    """A family's own mistake, not a checkpoint's: its map must reach each element of each weight once, and nothing but
    weights holds any."""
    filling: dict[str, list[Part]] = {name: [] for name in params}
    for name, slot in weights.slots.items():
        filling[slot.param].append(parts[name])
    wrong = [name for name, weight in params.items() if not _once(weight.whole, filling[name])]
    wrong += [name for name, _ in module.named_parameters()]
    if wrong:
        raise AssertionError(f"the family's weight map does not fill {summary(wrong)} exactly once")


def _once(shape: tuple[int, ...], parts: list[Part]) -> bool:
    """Whether each place of `shape` is in exactly one part; counted in the cells that the parts' edges cut it into."""
    cuts = []
    for along, size in enumerate(shape):
        edges = {edge for part in parts for edge in (part.ranges[along].start, part.ranges[along].stop)}
        cuts.append(sorted(edges | {0, size}))
    cells = np.zeros([len(edges) - 1 for edges in cuts], np.int32)
    for part in parts:
        ends = zip(cuts, part.ranges, strict=True)
        cells[tuple(slice(bisect_left(edges, r.start), bisect_left(edges, r.stop)) for edges, r in ends)] += 1
    return bool((cells == 1).all())


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


def _check_shapes(sources: dict[str, Held], parts: dict[str, Part], checkpoint: Checkpoint) -> None:
    wrong = []
    for name, part in parts.items():
        handle, stored = sources[name]
        shape = list(handle.get_slice(stored).get_shape())
        if shape != list(part.shape):
            wrong.append(f"{stored} is {shape}, not {list(part.shape)}")
    if wrong:
        raise ConfigError(f"{checkpoint.path} holds tensors whose shape config.json does not imply: {summary(wrong)}")


def _in_file_order(sources: dict[str, Held], names: Iterable[str]) -> Iterator[str]:
    """File by file, so that each is read from its beginning to its end."""
    return iter(sorted(names, key=lambda name: (id(sources[name][0]), sources[name][1])))

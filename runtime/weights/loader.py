"""Safetensors into a built module: every tensor used, every weight filled, or start-up ends naming them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Protocol, TypeVar, cast

import numpy as np
import torch
from torch import nn

from runtime.errors import ConfigError
from runtime.layers.layer_factory import LayerFactory
from runtime.layers.lora import LoRAConfig
from runtime.layers.parameter import Weight, named_weights, require_finite
from runtime.layers.sharding import Index, WeightSlice
from runtime.models.base import Model, ModelFamily
from runtime.models.weight_map import WeightMap, WeightTarget
from runtime.quantization.base import QuantizedWeight
from runtime.quantization.checkpoint import get_scheme
from runtime.weights.checkpoint import Checkpoint, summary
from runtime.weights.hub import Progress
from runtime.weights.shard_reader import Stored, gather

Arch = TypeVar("Arch")


class Change(Protocol):
    """What makes other tensors of a checkpoint's before they fill a model."""

    def concerns(self, name: str) -> bool:
        """Whether it changes the tensor of this canonical name."""
        ...

    def __call__(self, name: str, tensor: torch.Tensor) -> torch.Tensor: ...


def load_model(
    checkpoint: Checkpoint,
    family: ModelFamily[Arch],
    arch: Arch,
    build: LayerFactory,
    progress: Progress | None = None,
    change: Change | None = None,
) -> Model:
    """Build the family's model for `arch` (what ``family.parse(checkpoint.config)`` returned) and fill it.

    `progress(phase, bytes_done, bytes_total)` is called after each tensor. Raises ConfigError as `fill` does; for a
    config.json that does not describe these files before anything of the size that it states is allocated.
    """
    weights = family.weights(arch)
    try:
        drawn = sketch(family, arch, build.dtype, build.quantization)
    except RuntimeError as error:
        raise ConfigError(f"{checkpoint.path}: config.json states sizes that no tensor can have: {error}") from None
    with ExitStack() as stack:
        sources, _, slots = _open(cast(nn.Module, drawn), checkpoint, weights, stack)
        plain = _plain(cast(nn.Module, drawn), sources, slots, checkpoint)
    model = family.make(arch, replace(build, allow_fused_shared_expert=not plain) if plain else build)
    for name, shape in plain.items():
        path, _, attribute = name.rpartition(".")
        setattr(cast(nn.Module, model).get_submodule(path), attribute, build.with_lora(build.parameter(*shape)))
    fill(cast(nn.Module, model), checkpoint, weights, progress, change)
    return model


def sketch(
    family: ModelFamily[Arch],
    arch: Arch,
    dtype: torch.dtype,
    quantization: str | None = None,
    adapters: LoRAConfig | None = None,
) -> Model:
    """The model without memory, whatever it will compute with: names and shapes of its weights, as a checkpoint has
    them, are the same in every format and on every device."""
    return family.make(arch, LayerFactory.create("meta", dtype, "torch", quantization, adapters))


def _plain(
    drawn: nn.Module, sources: dict[str, Stored], slots: Mapping[str, WeightTarget], checkpoint: Checkpoint
) -> dict[str, tuple[int, ...]]:
    """The weights, and their shapes, that a quantised checkpoint holds as they are although `drawn` keeps such in few
    bits: they stay so. ConfigError for experts, whose kernels take all of a layer's in one format."""
    if get_scheme(checkpoint.config) is None:
        return {}
    found: dict[str, set[bool]] = {}
    for name, slot in slots.items():
        found.setdefault(slot.param, set()).add(sources[name].scheme is None)
    packed = {name: weight for name, weight in named_weights(drawn).items() if isinstance(weight, QuantizedWeight)}
    fits = ({False}, {True})  # the second, of matrices that are no stack
    wrong = [name for name, weight in packed.items() if found[name] not in fits[: 4 - len(weight.shape)]]
    if wrong:
        plain = [name for name, slot in slots.items() if slot.param in wrong and sources[name].scheme is None]
        inside = [sources[name].name for name in plain]
        raise ConfigError(
            f"{checkpoint.path} holds {summary(inside)} plain, but quantises what is one with them here; have it "
            "quantise all of a model's experts, and queries, keys and values alike"
        )
    return {name: weight.shape for name, weight in packed.items() if found[name] == {True}}


def fill(
    module: nn.Module,
    checkpoint: Checkpoint,
    weights: WeightMap,
    progress: Progress | None = None,
    change: Change | None = None,
) -> None:
    """Hand the checkpoint's tensors, one at a time, to `module`'s weights, which take them in their own format;
    `change`, where there is one, makes others of them before, by their canonical names.

    Raises:
        ConfigError: a tensor is missing, unknown, misshapen, not floating point, or holds NaN or infinities (also
            those that only the cast makes).
    """
    params = named_weights(module)
    with ExitStack() as stack:
        sources, copies, slots = _open(module, checkpoint, weights, stack)
        total, done = sum(weight.nbytes for weight in params.values()), 0
        taken = dict.fromkeys(params, 0)
        for name in _in_file_order(sources, slots):
            stored, slot = sources[name], slots[name]
            weight, before = params[slot.param], taken[slot.param]
            own = change if change is not None and change.concerns(name) else None
            beside = [_beside(sources[other], copies.get(other, ()), checkpoint) for other in slot.combine_with]
            with _named(stored, checkpoint):
                taken[slot.param] += _hand_over(name, stored, copies.get(name, ()), slot, weight, own, beside)
            done += weight.nbytes * taken[slot.param] // weight.size - weight.nbytes * before // weight.size
            if progress is not None:
                progress("weights", done, total)
    wrong = [name for name, weight in params.items() if taken[name] != weight.size]
    if wrong:
        raise AssertionError(f"the format of {summary(wrong)} did not take each element that it keeps once")


@contextmanager
def _named(stored: Stored, checkpoint: Checkpoint) -> Iterator[None]:
    """A ConfigError, worded to follow the tensor's name, gets it."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"tensor {stored.name!r} of {checkpoint.path} {error}") from None


def _beside(stored: Stored, copies: Iterable[Stored], checkpoint: Checkpoint) -> torch.Tensor:
    """What goes into a weight together with another tensor."""
    with _named(stored, checkpoint):
        tensor = _reader(stored, copies, whole=True)(())
        require_finite(tensor, tensor)
    return tensor


def _hand_over(
    name: str, stored: Stored, copies: Iterable[Stored], slot: WeightTarget, weight: Weight, change: Change | None,
    beside: Iterable[torch.Tensor],
) -> int:  # fmt: skip
    """How many of its elements the weight took; ConfigError, worded to follow the tensor's name."""
    if stored.scheme is None:
        read = _reader(stored, copies, whole=weight.shard is None)
        if change is None and slot.transform is None:
            return weight.load_lazily(slot.index, read)
        tensor = read(()) if change is None else change(name, read(()))
        return weight.load(slot.index, _through(slot, tensor, beside))
    for copy in copies:
        if not stored.equals(copy):
            raise _differ(copy)
    kept = weight.kernel_arg
    packed = stored.read_quantized(kept.device if isinstance(kept, torch.Tensor) else kept.values.device)
    if change is None and slot.transform is None:
        return weight.load_quantized(slot.index, packed)
    tensor = packed.dequantize(torch.float32)
    if change is not None:
        tensor = change(name, tensor)
    return weight.load(slot.index, _through(slot, tensor, beside))


def _through(slot: WeightTarget, tensor: torch.Tensor, beside: Iterable[torch.Tensor]) -> torch.Tensor:
    return tensor if slot.transform is None else slot.transform(tensor, *(other.to(tensor.device) for other in beside))


def _reader(stored: Stored, copies: Iterable[Stored], *, whole: bool) -> Callable[[Index], torch.Tensor]:
    """What reads a box of a plain tensor, `()` being all of it, and no more than that; unless it is `whole`: all at
    once is quicker then. It raises ConfigError, worded to follow the tensor's name."""

    def read(box: Index) -> torch.Tensor:
        part = () if whole else box
        tensor = stored.plain(part)
        for copy in copies:
            other = copy.plain(part)
            if tensor.dtype != other.dtype or not torch.equal(tensor, other):
                raise _differ(copy)
        if not tensor.is_floating_point() or tensor.element_size() < 2:
            raise ConfigError(
                f"is {tensor.dtype}: quantised weights cannot be loaded where config.json has no quantization_config "
                "that says how; use a checkpoint in bfloat16, float16 or float32"
            )
        return tensor

    return read


def _differ(copy: Stored) -> ConfigError:
    return ConfigError(f"and {copy.name!r} there are one tensor in this family, but have different values")


def _open(
    module: nn.Module, checkpoint: Checkpoint, weights: WeightMap, stack: ExitStack
) -> tuple[dict[str, Stored], dict[str, list[Stored]], Mapping[str, WeightTarget]]:
    """The checkpoint's tensors by the family's names, those that hold one of them again, and where each belongs.

    ConfigError unless they are the weights of `module`, names and shapes; no tensor is read for it.
    """
    params = named_weights(module)
    files, scheme = checkpoint.tensor_files(), get_scheme(checkpoint.config)
    try:
        gathered = gather(files.keys(), scheme)
    except ConfigError as error:
        raise ConfigError(f"{checkpoint.path} {error}") from None
    weights = weights.of({weights.rename(name) for name in gathered})
    parts = {name: WeightSlice.of(params[slot.param].full_shape, slot.index) for name, slot in weights.slots.items()}
    _check_coverage(module, params, parts, weights)
    kept = _match(checkpoint, gathered, weights)
    used = {files[name] for each in kept for name in gathered[each].values()}
    handles = {file: stack.enter_context(checkpoint.tensors(file)) for file in used}
    sources: dict[str, Stored] = {}
    copies: dict[str, list[Stored]] = {}
    for each in kept:
        inside = {ending: (handles[files[name]], name) for ending, name in gathered[each].items()}
        held = Stored(each, inside, None if "" in inside else scheme)
        if sources.setdefault(name := weights.rename(each), held) is not held:
            copies.setdefault(name, []).append(held)
    shapes = {name: part.shape for name, part in parts.items()} | weights.combine_with
    _check_shapes(sources, shapes, checkpoint)
    return sources, copies, weights.slots


def _check_coverage(
    module: nn.Module, params: dict[str, Weight], parts: dict[str, WeightSlice], weights: WeightMap
) -> None:
    """A family's own mistake, not a checkpoint's: its map must reach each element of each weight once, and nothing but
    weights holds any."""
    filling: dict[str, list[WeightSlice]] = {name: [] for name in params}
    for name, slot in weights.slots.items():
        filling[slot.param].append(parts[name])
    wrong = [name for name, weight in params.items() if not _once(weight.full_shape, filling[name])]
    wrong += [name for name, _ in module.named_parameters()]
    if wrong:
        raise AssertionError(f"the family's weight map does not fill {summary(wrong)} exactly once")


def _once(shape: tuple[int, ...], parts: list[WeightSlice]) -> bool:
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


def _match(checkpoint: Checkpoint, stored: Iterable[str], weights: WeightMap) -> list[str]:
    """Those names that are not skipped; ConfigError unless they are exactly the family's."""
    files = [name for name in stored if not weights.skip(weights.rename(name))]
    known = [weights.rename(name) for name in files]
    if len(set(known)) != len(known) and not weights.copies:
        twice = sorted({n for n in known if known.count(n) > 1})
        raise ConfigError(f"{checkpoint.path} holds {summary(twice)} more than once, under different names")
    implied = weights.slots.keys() | weights.combine_with.keys()
    missing = sorted(implied - set(known))
    extra = sorted(name for name in files if weights.rename(name) not in implied)
    if missing or extra:
        parts = [f"{len(missing)} missing: {summary(missing)}"] if missing else []
        parts += [f"{len(extra)} unknown: {summary(extra)}"] if extra else []
        raise ConfigError(f"{checkpoint.path} does not hold the tensors its config.json implies ({'; '.join(parts)})")
    return files


def _check_shapes(sources: dict[str, Stored], shapes: Mapping[str, tuple[int, ...]], checkpoint: Checkpoint) -> None:
    wrong = []
    for name, implied in shapes.items():
        stored = sources[name]
        with _named(stored, checkpoint):
            shape = stored.shape
        if shape != list(implied):
            wrong.append(f"{stored.name} is {shape}, not {list(implied)}")
    if wrong:
        raise ConfigError(f"{checkpoint.path} holds tensors whose shape config.json does not imply: {summary(wrong)}")


def _in_file_order(sources: dict[str, Stored], names: Iterable[str]) -> Iterator[str]:
    """File by file, so that each is read from its beginning to its end."""
    return iter(sorted(names, key=lambda name: sources[name].place))

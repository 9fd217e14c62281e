"""Loads safetensors into a model. Every tensor must be used and every weight loaded, else start-up fails."""

from __future__ import annotations

import logging
import math
import time
from bisect import bisect_left
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar, cast

import numpy as np
import torch
from torch import nn

from runtime.errors import ConfigError
from runtime.layers.layer_factory import LayerFactory
from runtime.models.base import Model, ModelFamily, WeightMap, WeightTarget
from runtime.parameters.sharding import Index, WeightSlice
from runtime.parameters.weight import Weight, defer_checks, named_weights, require_finite
from runtime.quantization.checkpoint.scheme import get_quantization
from runtime.weights.checkpoint import QUANTIZATION, Checkpoint, summary
from runtime.weights.hub import Progress
from runtime.weights.shard_reader import StoredParts, StoredTensor, group_tensors
from runtime.weights.shard_stream import Shard, stream_tensors
from runtime.weights.weight_formats import Formats, make_model, meta_model, weight_formats

Arch = TypeVar("Arch")
log = logging.getLogger(__name__)

# Of tensors that only quantized checkpoints have.
QUANTIZED_SUFFIXES = (".qweight", ".weight_packed", ".weight_scale", ".weight_scale_inv", ".SCB", ".weight.absmax")
PROGRESS_SECONDS = 0.1  # between reports of progress


@dataclass(frozen=True)
class OpenTensors:
    """Tensors of an open checkpoint, matched to the weights of a model.

    Attributes:
        sources: Canonical name -> tensor.
        copies: Canonical name -> further tensors that have to be equal to it.
        slots: Canonical name -> target of the tensor.
    """

    sources: Mapping[str, StoredTensor]
    copies: Mapping[str, list[StoredTensor]]
    slots: Mapping[str, WeightTarget]


class WeightTransform(Protocol):
    """Transforms tensors of a checkpoint before they are loaded into a model."""

    def applies_to(self, name: str) -> bool:
        """Returns whether it changes the tensor of this canonical name."""
        ...

    def __call__(self, name: str, tensor: torch.Tensor) -> torch.Tensor: ...


def load_model(
    checkpoint: Checkpoint,
    family: ModelFamily[Arch],
    arch: Arch,
    build: LayerFactory,
    progress: Progress | None = None,
    transform: WeightTransform | None = None,
) -> Model:
    """Builds the family's model and loads the checkpoint's weights.

    Args:
        checkpoint: The checkpoint.
        family: The model family.
        arch: Result of ``family.parse(checkpoint.config)``.
        build: Creates the layers.
        progress: Called as ``("weights", bytes_done, bytes_total)`` every 0.1 s, and after the last tensor.
        transform: Transforms tensors by their canonical names, for example to merge an adapter.

    Raises:
        ConfigError: A tensor is missing, unknown, of the wrong shape, not floating point, or has NaN or infinite values
            (also if only the cast produces them). If config.json does not describe these files, this is raised before
            anything of the stated sizes is allocated.
    """
    weights = family.weights(arch)
    meta = meta_model(family, arch, build.dtype, build.quantization)
    formats: Formats = {}
    with ExitStack() as stack:
        opened = _open(cast(nn.Module, meta), checkpoint, weights, stack)
        if get_quantization(checkpoint.config) is not None:
            schemes = {name: stored.scheme for name, stored in opened.sources.items()}
            try:
                formats = weight_formats(named_weights(cast(nn.Module, meta)), opened.slots, schemes)
            except ConfigError as error:
                raise ConfigError(f"{checkpoint.path} {error}") from None
            quantized = {slot.param for name, slot in opened.slots.items() if schemes.get(name) is not None}
            if lost := sorted(path for path in quantized if path in formats and formats[path] is None):
                log.warning("%s dequantized: other weights of the same experts have another format", summary(lost))
        model = make_model(family, arch, build, formats)
        module = cast(nn.Module, model)
        _check_same_weights(module, cast(nn.Module, meta))
        _load(module, checkpoint, opened, progress, transform)
    return model


def _check_same_weights(module: nn.Module, meta: nn.Module) -> None:
    """Asserts that a model has the weights of its copy on the meta device, to which the checkpoint was matched."""
    shapes, expected = (
        {name: weight.full_shape for name, weight in named_weights(each).items()} for each in (module, meta)
    )
    wrong = [name for name in shapes.keys() | expected.keys() if shapes.get(name) != expected.get(name)]
    if wrong:
        raise AssertionError(f"{summary(sorted(wrong))} differ from the model on the meta device")


def _load(
    module: nn.Module,
    checkpoint: Checkpoint,
    opened: OpenTensors,
    progress: Progress | None,
    transform: WeightTransform | None,
) -> None:
    """Loads tensors that were matched to the weights of `module`, one at a time, in the weights' own format."""
    params, sources, copies, slots = named_weights(module), opened.sources, opened.copies, opened.slots
    total, done, reported = sum(weight.nbytes for weight in params.values()), 0, -math.inf
    taken = dict.fromkeys(params, 0)

    def load(name: str, stored: StoredTensor) -> int:
        slot = slots[name]
        own = transform if transform is not None and transform.applies_to(name) else None
        extra = [_read_extra(sources[other], copies.get(other, ()), checkpoint) for other in slot.combine_with]
        with _name_errors(stored, checkpoint):
            return _load_weight(name, stored, copies.get(name, ()), slot, params[slot.param], own, extra)

    complete_on_gpu = {name for name, weight in params.items() if weight.shard is None and weight.device.type == "cuda"}
    streamed = {
        name
        for name, slot in slots.items()
        if name not in copies
        and slot.transform is None
        and (transform is None or not transform.applies_to(name))
        and slot.param in complete_on_gpu
    }
    with defer_checks() as checks, closing(_prefetch(checkpoint, sources, slots, streamed)) as tensors:
        for name, stored in tensors:
            checks.name = name
            slot, weight = slots[name], params[slots[name].param]
            before = taken[slot.param]
            taken[slot.param] += load(name, stored)
            done += weight.nbytes * taken[slot.param] // weight.size - weight.nbytes * before // weight.size
            if progress is not None and (done == total or time.monotonic() - reported > PROGRESS_SECONDS):
                progress("weights", done, total)
                reported = time.monotonic()
            if (wrong_name := checks.failed(wait=False)) is not None:
                break
        else:
            wrong_name = checks.failed()
    if wrong_name is not None:
        load(wrong_name, sources[wrong_name])
        raise AssertionError(f"{wrong_name!r} was not finite when it was loaded first")
    wrong = [name for name, weight in params.items() if taken[name] != weight.size]
    if wrong:
        raise AssertionError(f"the format of {summary(wrong)} did not load each local element exactly once")


def _prefetch(
    checkpoint: Checkpoint, sources: Mapping[str, StoredTensor], names: Iterable[str], streamed: Collection[str]
) -> Generator[tuple[str, StoredTensor]]:
    """Yields each tensor of `names` once: first those of `streamed`, whose main parts are on the GPU then, and then the
    others in the order of the files.
    """
    with ExitStack() as stack:
        shards: list[Shard] = []
        by_stored_name: dict[str, str] = {}
        device = torch.device("cpu")
        by_file: dict[str, dict[str, str]] = {}  # file -> stored name -> canonical name
        for name in streamed:
            by_file.setdefault(sources[name].file, {})[sources[name].main_name] = name
        for file, own in sorted(by_file.items()):
            descriptor, ranges = stack.enter_context(checkpoint.tensor_bytes(file))
            found = sorted((ranges[stored] for stored in own if stored in ranges), key=lambda at: at.start)
            by_stored_name |= {at.name: own[at.name] for at in found}
            shards.append(Shard(str(checkpoint.path / file), descriptor, found))
        if shards:
            device = torch.device("cuda", torch.cuda.current_device())
        for at, data in stack.enter_context(stream_tensors(shards, device)):
            name = by_stored_name[at.name]
            yield name, replace(sources[name], data=data)
    others = set(names).difference(by_stored_name.values())
    for name in sorted(others, key=lambda name: sources[name].sort_key):
        yield name, sources[name]


@contextmanager
def _name_errors(stored: StoredTensor, checkpoint: Checkpoint) -> Iterator[None]:
    """Prefixes ConfigErrors, whose text follows a tensor's name, with that name."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"tensor {stored.name!r} of {checkpoint.path} {error}") from None


def _read_extra(stored: StoredTensor, copies: Iterable[StoredTensor], checkpoint: Checkpoint) -> torch.Tensor:
    """Reads a tensor that is combined with another one into a weight."""
    with _name_errors(stored, checkpoint):
        tensor = _reader(stored, copies, full=True)(())
        require_finite(tensor, tensor)
    return tensor


def _load_weight(
    name: str, stored: StoredTensor, copies: Iterable[StoredTensor], slot: WeightTarget, weight: Weight,
    transform: WeightTransform | None, extra: Iterable[torch.Tensor],
) -> int:  # fmt: skip
    """Loads one tensor into its weight; returns the number of elements. The text of a ConfigError follows the tensor's
    name.
    """
    if stored.scheme is None:
        read = _reader(stored, copies, full=weight.shard is None)
        if transform is None and slot.transform is None:
            return weight.load_lazily(slot.index, read)
        tensor = read(())
    else:
        for copy in copies:
            if not stored.equals(copy):
                raise _differing_copies(copy)
        packed = stored.read_quantized(weight.device)
        if transform is None and slot.transform is None:
            return weight.load_quantized(slot.index, packed)
        tensor = packed.dequantize(torch.float32)
    if transform is not None:
        tensor = transform(name, tensor)
    if slot.transform is not None:
        tensor = slot.transform(tensor, *(other.to(tensor.device) for other in extra))
    return weight.load(slot.index, tensor)


def _reader(stored: StoredTensor, copies: Iterable[StoredTensor], *, full: bool) -> Callable[[Index], torch.Tensor]:
    """Returns a function that reads a slice of an unquantized tensor; `()` is the full tensor.

    With `full` it always reads the full tensor, which is faster if all of it is required. The text of a ConfigError
    follows the tensor's name.
    """

    def read(box: Index) -> torch.Tensor:
        part = () if full else box
        tensor = stored.read(part)
        for copy in copies:
            other = copy.read(part)
            if tensor.dtype != other.dtype or not torch.equal(tensor, other):
                raise _differing_copies(copy)
        if not tensor.is_floating_point() or tensor.element_size() < 2:
            raise ConfigError(
                f"is {tensor.dtype}: quantized weights cannot be loaded where config.json has no quantization_config "
                "that says how; use a checkpoint in bfloat16, float16 or float32"
            )
        return tensor

    return read


def _differing_copies(copy: StoredTensor) -> ConfigError:
    return ConfigError(f"and {copy.name!r} name one tensor in this family, but have different values")


def _open(module: nn.Module, checkpoint: Checkpoint, weights: WeightMap, stack: ExitStack) -> OpenTensors:
    """Opens the checkpoint's tensors and matches them to the weights of `module`, by name and shape. Reads no tensor.

    Raises:
        ConfigError: Names or shapes differ.
    """
    params = named_weights(module)
    files = checkpoint.tensor_files()
    gathered, weights = _gather(checkpoint, files.keys(), weights)
    if unused := len(files) - sum(len(parts.names) for parts in gathered.values()):
        log.info("%d scales of activations and of the KV cache are not used: neither is quantized by them", unused)
    parts = {name: WeightSlice.of(params[slot.param].full_shape, slot.index) for name, slot in weights.slots.items()}
    _check_coverage(module, params, parts, weights)
    names = _match(checkpoint, gathered, weights)
    used = {files[name] for each in names for name in gathered[each].names.values()}
    handles = {file: stack.enter_context(checkpoint.tensors(file)) for file in used}
    sources: dict[str, StoredTensor] = {}
    copies: dict[str, list[StoredTensor]] = {}
    for each in names:
        scheme, stored = gathered[each]
        inside = {ending: (handles[files[name]], name) for ending, name in stored.items()}
        held = StoredTensor(each, inside, scheme, files[stored["" if scheme is None else scheme.suffixes[0]]])
        if sources.setdefault(name := weights.rename(each), held) is not held:
            copies.setdefault(name, []).append(held)
    shapes = {name: part.shape for name, part in parts.items()} | weights.combine_with
    _check_shapes(sources, shapes, checkpoint)
    return OpenTensors(sources, copies, weights.slots)


def _gather(
    checkpoint: Checkpoint, names: Collection[str], weights: WeightMap
) -> tuple[dict[str, StoredParts], WeightMap]:
    """Returns the result of `group_tensors` for stored names, and the map of a checkpoint that has these tensors."""
    try:
        gathered = group_tensors(names, get_quantization(checkpoint.config))
    except ConfigError as error:
        raise ConfigError(f"{checkpoint.path} {error}") from None
    return gathered, weights.of({weights.rename(name) for name in gathered})


def check_index(checkpoint: Checkpoint, weights: WeightMap) -> None:
    """Raises ConfigError if the index lists other tensors than config.json implies. No shard has to be there."""
    listed = checkpoint.read_index()
    if listed is not None:
        _match(checkpoint, *_gather(checkpoint, listed.keys(), weights))


def _check_coverage(
    module: nn.Module, params: dict[str, Weight], parts: dict[str, WeightSlice], weights: WeightMap
) -> None:
    """Asserts that the weight map covers each element of each weight once, and that all parameters are weights."""
    filling: dict[str, list[WeightSlice]] = {name: [] for name in params}
    for name, slot in weights.slots.items():
        filling[slot.param].append(parts[name])
    wrong = [name for name, weight in params.items() if not _covers_once(weight.full_shape, filling[name])]
    wrong += [name for name, _ in module.named_parameters()]
    if wrong:
        raise AssertionError(f"the family's weight map does not fill {summary(wrong)} exactly once")


def _covers_once(shape: tuple[int, ...], parts: list[WeightSlice]) -> bool:
    """Returns whether `parts` cover `shape` exactly once, counted in the grid of the parts' edges."""
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
    """Returns the names that are not skipped. Raises ConfigError unless they are exactly the family's."""
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
        why = ""
        if checkpoint.config.get(QUANTIZATION) is None and any(name.endswith(QUANTIZED_SUFFIXES) for name in extra):
            why = f"; its weights are quantized, but config.json has no {QUANTIZATION} that says how"
        raise ConfigError(
            f"{checkpoint.path} does not hold the tensors its config.json implies ({'; '.join(parts)}){why}"
        )
    return files


def _check_shapes(
    sources: dict[str, StoredTensor], shapes: Mapping[str, tuple[int, ...]], checkpoint: Checkpoint
) -> None:
    wrong = []
    for name, implied in shapes.items():
        stored = sources[name]
        with _name_errors(stored, checkpoint):
            shape = stored.shape
        if shape != list(implied):
            wrong.append(f"{stored.name} is {shape}, not {list(implied)}")
    if wrong:
        raise ConfigError(f"{checkpoint.path} holds tensors whose shape config.json does not imply: {summary(wrong)}")

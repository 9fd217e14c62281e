"""Complete weights of the base model in an adapter's file. They must equal those of the checkpoint.

PEFT saves them beside the pairs: those of an adapted LM head, of both ends of a model with `save_embedding_layers`, and
the modules of `modules_to_save` (peft/utils/save_and_load.py).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping

import torch

from runtime.errors import ConfigError
from runtime.models.base import WeightMap
from runtime.weights.checkpoint import Checkpoint, TensorFile

EMBEDDING = "embed_tokens.weight"  # parameter of all families
PIECE = 1 << 24  # elements that are compared at once
_NAME = re.compile(
    r"base_model\.model\.(.+?)(?:\.(?:base_layer|(?:original_module|modules_to_save)(?:\.default)?))?\.(weight|bias)"
)


def base_name(name: str) -> str | None:
    """Returns the name in the base model of a complete weight of an adapter's file; None for other tensors."""
    match = _NAME.fullmatch(name)
    return None if match is None else ".".join(match.groups())


def check_unchanged(
    handle: TensorFile, names: Mapping[str, str], weights: WeightMap, open_base: Callable[[], Checkpoint] | None
) -> None:
    """Compares tensors of an adapter's file with the checkpoint's, in the dtype of the adapter's file.

    Args:
        handle: The adapter's file.
        names: Name in this file -> name in the base model.
        weights: The weights of the base model.
        open_base: Returns the base model's files; None if it has random weights.

    Raises:
        ConfigError: One differs, has another shape, or is not in the checkpoint. Names it.
    """
    if not names:
        return
    checkpoint = open_base() if open_base is not None else None
    files = checkpoint.tensor_files() if checkpoint is not None else {}
    stored = {weights.rename(name): name for name in files}
    embedding = next(name for name, slot in weights.slots.items() if slot.param == EMBEDDING)
    for name, base in names.items():
        canonical = weights.rename(base)
        # the tensor of a tied head is skipped
        own = stored.get(embedding if weights.skip(canonical) else canonical)
        if checkpoint is None or own is None:
            raise _refused(name, "the base model has no such weight; only LoRA adapters are supported")
        with checkpoint.tensors(files[own]) as base_handle:
            shapes = [list(each.get_shape()) for each in (handle.get_slice(name), base_handle.get_slice(own))]
            if shapes[0] != shapes[1]:
                raise _refused(
                    name,
                    f"it is {shapes[0]}, but {own!r} of the base model is {shapes[1]}; if the training added tokens, "
                    "train without new tokens",
                )
            if not _equal(handle, name, base_handle, own, shapes[0]):
                raise _refused(
                    name,
                    f"it differs from {own!r} of the base model. Complete weights are not supported: train without "
                    "modules_to_save, or remove the tensor if the adapter does not need it",
                )


def _equal(handle: TensorFile, name: str, base: TensorFile, own: str, shape: list[int]) -> bool:
    if math.prod(shape) <= PIECE:
        return _same_values(handle.get_tensor(name), base.get_tensor(own))
    rows = max(1, PIECE // math.prod(shape[1:]))
    tensor, original = handle.get_slice(name), base.get_slice(own)
    pieces = (slice(start, start + rows) for start in range(0, shape[0], rows))
    return all(_same_values(tensor[(piece,)], original[(piece,)]) for piece in pieces)


def _same_values(tensor: torch.Tensor, original: torch.Tensor) -> bool:
    return torch.equal(tensor, original.to(tensor.dtype))


def _refused(name: str, why: str) -> ConfigError:
    return ConfigError(f"tensor {name!r} is not half of a LoRA pair, and {why}")

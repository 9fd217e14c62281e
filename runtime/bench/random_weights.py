"""Writes checkpoint directories of named model shapes without tensors, and loads them with random weights.

Weights are drawn on the device that uses them, because files of a large shape would take minutes to write and read.
"""

from __future__ import annotations

import itertools
import json
import math
import shutil
import string
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from safetensors.torch import save_file
from torch import nn

from runtime.bench.model_shapes import architecture, random_model
from runtime.bench.sizes import check_memory, check_weights
from runtime.child_process import module_command
from runtime.distributed.process_group import SINGLE_RANK, TensorParallelGroup
from runtime.layers.kv_pool import UnifiedPool
from runtime.layers.layer_factory import LayerFactory
from runtime.models.base import Model, ModelFamily, resolve_family
from runtime.parameters.sharding import WeightSlice
from runtime.parameters.weight import named_weights
from runtime.weights.checkpoint import Checkpoint, resolve_checkpoint
from runtime.weights.hub import Progress
from runtime.weights.weight_formats import meta_model

if TYPE_CHECKING:
    from runtime import LLM

PAGE_SIZE = 32  # the default of --page-size
NO_TENSORS = b"\x02" + bytes(7) + b"{}"
SPACE = "Ġ"  # a space in the vocabulary of the demo's tokenizer


def write_files(directory: Path, name: str) -> None:
    """Writes a checkpoint directory of the shape `name` without tensors.

    It has the demo's tokenizer, with invented words up to the size of the shape's vocabulary.

    Raises:
        ConfigError: there is no such shape.
    """
    config = architecture(name)
    demo = resolve_checkpoint(None).path
    size = config.get("vocab_size") or config["text_config"]["vocab_size"]
    tokenizer: dict[str, Any] = json.loads((demo / "tokenizer.json").read_text())
    vocab: dict[str, int] = tokenizer["model"]["vocab"]
    _assign_id(config.get("mask_token_id"), "<|mask|>", tokenizer["added_tokens"])
    vocab |= {token["content"]: token["id"] for token in tokenizer["added_tokens"]}  # invented words get other ids
    invented = (SPACE + word for word in _invented_tokens() if SPACE + word not in vocab)
    vocab |= dict(zip(invented, range(max(vocab.values()) + 1, size), strict=False))
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
    (directory / "model.safetensors").write_bytes(NO_TENSORS)
    shutil.copy(demo / "tokenizer_config.json", directory)


def write_tensors(directory: Path, name: str, shard_bytes: int = 2 << 30) -> int:
    """Writes bfloat16 tensors of the shape `name` to safetensors files with an index, after `write_files`.

    The values are slices of the same random numbers, so that a large shape is written as fast as the disk allows.

    Returns:
        Bytes written.
    """
    (directory / "model.safetensors").unlink()
    checkpoint_config = architecture(name)
    family = resolve_family(None, checkpoint_config)
    arch = family.parse(checkpoint_config)
    weights = family.weights(arch)
    params = named_weights(cast(nn.Module, meta_model(family, arch, torch.bfloat16)))
    shapes = {
        tensor: tuple(WeightSlice.of(params[slot.param].full_shape, slot.index).shape)
        for tensor, slot in weights.slots.items()
    } | weights.combine_with
    numbers = torch.randn(max(math.prod(shape) for shape in shapes.values()), dtype=torch.float32)
    numbers = numbers.mul_(0.02).to(torch.bfloat16)
    files: list[dict[str, torch.Tensor]] = [{}]
    written = size = 0
    for tensor, shape in shapes.items():
        count = math.prod(shape)
        if size and size + 2 * count > shard_bytes:
            files.append({})
            size = 0
        files[-1][tensor] = numbers[:count].view(shape)
        size += 2 * count
        written += 2 * count
    names = [f"model-{n + 1:05}-of-{len(files):05}.safetensors" for n in range(len(files))]
    for file, tensors in zip(names, files, strict=True):
        save_file({tensor: each.clone() for tensor, each in tensors.items()}, directory / file)
    index = {tensor: file for file, tensors in zip(names, files, strict=True) for tensor in tensors}
    (directory / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    return written


def _assign_id(token_id: int | None, name: str, tokens: list[dict[str, Any]]) -> None:
    """Swaps the ids of the token `name` and of the one with the id `token_id`. Without such a token, does nothing."""
    other = next((token for token in tokens if token["id"] == token_id), None)
    mine = next(token for token in tokens if token["content"] == name)
    if other is not None:
        mine["id"], other["id"] = other["id"], mine["id"]


def _invented_tokens() -> Iterator[str]:
    for length in itertools.count(4):
        yield from map("".join, itertools.product(string.ascii_lowercase, repeat=length))


def load_random(
    checkpoint: Checkpoint,
    family: ModelFamily[Any],
    arch: Any,
    build: LayerFactory,
    progress: Progress | None = None,
    *,
    pages: int = 0,
) -> Model:
    """Returns a model with random weights, in place of `runtime.weights.loader.load_model`.

    Args:
        pages: number of KV pages to check the host's memory for; 0 if it is not known.
    """

    def check(model: Model, build: LayerFactory) -> None:
        check_weights(model, build)
        size = pages * UnifiedPool.page_bytes(model.kv_shapes, PAGE_SIZE, build.dtype)
        check_memory(build.device, size, "the KV pages", "choose smaller --batch, --context or --max-tokens")

    return random_model(checkpoint.config, build, check=check)


def random_llm(model: str | None, group: TensorParallelGroup | None = None, **flags: Any) -> LLM:
    """Returns `LLM(model, **flags)` with random weights.

    Args:
        model: a directory of `write_files`.
        group: of the only rank that is loaded. None: all ranks of the flags are started.
    """
    from runtime import LLM
    from runtime.config import EngineConfig
    from runtime.engine.setup import load_engine
    from runtime.executor.executor import local_engine
    from runtime.tokenizer import Tokenizer

    config = EngineConfig.from_flags(model=model, **flags)
    load = partial(load_random, pages=config.num_pages or 0)
    if config.tensor_parallel_size > 1 and group is None:
        command = module_command("runtime.bench.random_rank")
        made = LLM.from_engine(*local_engine(config, load, command))
    else:
        made = LLM.from_engine(load_engine(config, load=load, group=group or SINGLE_RANK))
    if model is not None and not config.skip_tokenizer:
        made.tokenizer = Tokenizer(model)
    return made

"""A named shape as the rest of the runtime finds checkpoints: a directory with all of one's files, but no tensors: they
are drawn where they are to lie. To write and read those of a large shape would take minutes."""

from __future__ import annotations

import itertools
import json
import shutil
import string
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runtime.bench.model_shapes import architecture, random_model
from runtime.bench.sizes import check_memory, check_weights
from runtime.layers.kv_pool import UnifiedPool
from runtime.layers.layer_factory import LayerFactory
from runtime.models.base import Model, ModelFamily
from runtime.weights import Checkpoint, resolve_checkpoint
from runtime.weights.hub import Progress

if TYPE_CHECKING:
    from runtime import LLM

PAGE_SIZE = 32  # the default
NO_TENSORS = b"\x02" + bytes(7) + b"{}"
SPACE = "Ġ"  # how the tokenizer of the demo spells one


def write_files(directory: Path, name: str) -> None:
    """Of the shape `name`, with the demo's tokenizer and as many invented words as its vocabulary is larger.
    ConfigError if there is no such shape."""
    config = architecture(name)
    demo = resolve_checkpoint(None).path
    size = config.get("vocab_size") or config["text_config"]["vocab_size"]
    tokenizer: dict[str, Any] = json.loads((demo / "tokenizer.json").read_text())
    vocab: dict[str, int] = tokenizer["model"]["vocab"]
    _assign_id(config.get("mask_token_id"), "<|mask|>", tokenizer["added_tokens"])
    vocab |= {token["content"]: token["id"] for token in tokenizer["added_tokens"]}  # they keep their ids so
    invented = (SPACE + word for word in _invented_tokens() if SPACE + word not in vocab)
    vocab |= dict(zip(invented, range(max(vocab.values()) + 1, size), strict=False))
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
    (directory / "model.safetensors").write_bytes(NO_TENSORS)
    shutil.copy(demo / "tokenizer_config.json", directory)


def _assign_id(token_id: int | None, name: str, tokens: list[dict[str, Any]]) -> None:
    """The token `name` gets the id `wanted` if that is another's of `tokens`, which gets its own."""
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
    """In place of `runtime.weights.load_model`. `pages`: of the KV cache, if it is known how many there will be."""

    def check(model: Model, build: LayerFactory) -> None:
        check_weights(model, build)
        size = pages * UnifiedPool.page_bytes(model.kv_shapes, PAGE_SIZE, build.dtype)
        check_memory(build.device, size, "the KV pages", "choose smaller --batch, --context or --max-tokens")

    return random_model(checkpoint.config, build, check=check)


def random_llm(model: str | None, **flags: Any) -> LLM:
    """`LLM(model, **flags)` of such a directory."""
    from runtime import LLM
    from runtime.config import EngineConfig
    from runtime.distributed.local_executor import local_engine
    from runtime.engine.setup import load_engine
    from runtime.tokenizer import Tokenizer

    config = EngineConfig.from_flags(model=model, **flags)
    load = partial(load_random, pages=config.num_pages or 0)
    if config.tensor_parallel_size > 1:
        command = (sys.executable, "-m", "runtime.bench.random_rank")
        made = LLM.from_engine(*local_engine(config, load, command))
    else:
        made = LLM.from_engine(load_engine(config, load=load))
    if model is not None and not config.skip_tokenizer:
        made.tokenizer = Tokenizer(model)
    return made

"""What a model family gives the engine, and what the engine gives a model's forward."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from runtime.errors import ConfigError


@dataclass(frozen=True)
class ForwardBatch:
    """One forward's rows and how they attend. Row r of sequence n sits at ``positions[r]``.

    The rows of a sequence are contiguous, ``seq_rows[n]:seq_rows[n+1]``, and their positions are consecutive, starting
    at ``cached[n]``. Every row's K/V is written to ``slots[r]`` before attention; the query at position ``a`` then sees
    keys at positions ``k < min((a // block_size + 1) * block_size, kv_len[n])`` through the page table
    (decoding.md section 2: the cached prefix whole, block-causal among the new rows).
    """

    tokens: torch.Tensor  # int64 [rows]
    positions: torch.Tensor  # int64 [rows]
    slots: torch.Tensor  # int64 [rows], page * page_size + offset
    seq_rows: torch.Tensor  # int32 [seqs + 1]
    cached: torch.Tensor  # int32 [seqs], position of the sequence's first row
    kv_len: torch.Tensor  # int32 [seqs], cached + rows of the sequence
    page_table: torch.Tensor  # int32 [seqs, pages]; entries past a sequence's end are some valid page
    block_size: int
    page_size: int
    max_rows: int  # largest number of rows of one sequence
    max_kv: int  # largest kv_len


class Model(Protocol):
    """A built model. `kv_cache` is the unified pool [2, layers, pages, page_size, kv_heads, head_dim]."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int

    def forward(self, batch: ForwardBatch, kv_cache: torch.Tensor) -> torch.Tensor:
        """Hidden states after the final norm, [rows, hidden]."""
        ...

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[n, hidden] -> [n, vocab], float32 (float64 where the model is float64): never rounded below that."""
        ...


@dataclass(frozen=True)
class Family:
    """One family of checkpoints: how it is recognised, built and decoded (models.md).

    `parse` turns config.json into the family's own frozen architecture dataclass, or raises ConfigError naming the
    field. `build(arch, device=, dtype=, attn_impl=)` returns the module with unfilled parameters; `weights(arch)` is
    the ``WeightMap`` of where each tensor of a checkpoint goes (runtime/weights/loader.py).
    `turn_end_tokens` and `mask_tokens` are looked up by their text where a checkpoint's files do not give the ids.
    """

    key: str
    aliases: tuple[str, ...]
    detect: Callable[[Mapping[str, Any]], bool]
    parse: Callable[[Mapping[str, Any]], Any]
    build: Callable[..., Any]
    weights: Callable[[Any], Any]
    strategies: tuple[str, ...]
    sampling_modes: tuple[str, ...] = ("naive",)
    block_size: int = 32
    accept_threshold: float = 0.9
    turn_end_tokens: tuple[str, ...] = ()
    mask_tokens: tuple[str, ...] = ()
    needs_edit: frozenset[str] = field(default_factory=frozenset)  # aliases that require --sampling-mode edit


_FAMILIES: dict[str, Family] = {}


def register_family(family: Family) -> Family:
    for key in (family.key, *family.aliases):
        if key in _FAMILIES:
            raise ValueError(f"model family {key!r} is registered twice")
        _FAMILIES[key] = family
    return family


def families() -> list[str]:
    return sorted(_FAMILIES)


def resolve_family(name: str | None, config: Mapping[str, Any]) -> Family:
    """The family called `name`, or, without one, the only family that recognises `config`."""
    if name is not None:
        if name not in _FAMILIES:
            raise ConfigError(f"--model-name {name!r} is not a known family; known: {', '.join(families())}")
        return _FAMILIES[name]
    found = {f.key: f for f in _FAMILIES.values() if f.detect(config)}
    if len(found) != 1:
        raise ConfigError(
            f"config.json's model_type {config.get('model_type')!r} belongs to no known family; "
            f"known: {', '.join(families())} (name one with --model-name)"
        )
    return next(iter(found.values()))

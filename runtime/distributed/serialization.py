"""Encodes step plans for messages between ranks, and decodes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec

from runtime.algorithms.base import UnmaskingAlgorithm
from runtime.distributed.rpc import decode_array, encode_array
from runtime.engine import step_plan
from runtime.engine.step_plan import BatchLayout, StepPlan


class _ForwardPlan(msgspec.Struct):
    """A `StepPlan` without blocks. `layout`: None if it is that of the last step."""

    tokens: step_plan.Ints
    layout: BatchLayout | None
    soft_embeddings: step_plan.SoftEmbeddingRows | None
    self_conditioning: step_plan.SelfConditioningRows | None


def encode_forward(plan: StepPlan, *, same: bool = False) -> bytes:
    """Encodes a plan without its blocks. `same`: without its layout too, which is that of the last step."""
    layout = None if same else plan.layout
    return _encode(_ForwardPlan(plan.tokens, layout, plan.soft_embeddings, plan.self_conditioning))


def decode_forward(data: bytes, last_layout: BatchLayout | None = None) -> StepPlan:
    """Returns the plan of `encode_forward`. Raises ValueError if it is invalid, or there is no layout."""
    plan = msgspec.msgpack.decode(data, type=_ForwardPlan, dec_hook=decode_array)
    layout = plan.layout or last_layout
    if layout is None:
        raise ValueError("the first plan has no layout")
    return StepPlan(plan.tokens, layout, plan.soft_embeddings, plan.self_conditioning)


def encode_blocks(blocks: step_plan.DenoiseBlocks | None) -> bytes:
    """Encodes blocks without what only rank 0 applies: grammars, forced tokens and logprobs."""
    if blocks is None:
        return b""
    return _encode(replace(blocks, grammar_blocks=(), forced_tokens=(), num_logprobs=None, per_request=()))


def decode_blocks(data: bytes, get_algorithm: Callable[[str], UnmaskingAlgorithm]) -> step_plan.DenoiseBlocks | None:
    """Returns the blocks of `encode_blocks`, with the algorithms of `get_algorithm`. Raises ValueError."""

    def decode_value(kind: type, value: Any) -> Any:
        return get_algorithm(value) if kind is UnmaskingAlgorithm else decode_array(kind, value)

    return msgspec.msgpack.decode(data, type=step_plan.DenoiseBlocks, dec_hook=decode_value) if data else None


def _encode(plan: _ForwardPlan | step_plan.DenoiseBlocks) -> bytes:
    return msgspec.msgpack.encode(plan, enc_hook=_encode_value)


def _encode_value(value: object) -> Any:
    return value.key if isinstance(value, UnmaskingAlgorithm) else encode_array(value)

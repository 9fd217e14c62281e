"""Encodes step plans for messages between ranks, and decodes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec

from runtime.algorithms.base import UnmaskingAlgorithm
from runtime.executor.rpc import decode_array, encode_array
from runtime.scheduling import step_plan
from runtime.scheduling.step_plan import BatchLayout, StepPlan


class _ForwardPlan(msgspec.Struct):
    """A `StepPlan` without blocks. `layout`: None if it is the layout of the last step."""

    tokens: step_plan.Ints | None
    layout: BatchLayout | None
    soft_embeddings: step_plan.SoftEmbeddingRows | None
    self_conditioning: step_plan.SelfConditioningRows | None
    writes: tuple[step_plan.StateWrite, ...]


def encode_forward(plan: StepPlan, *, same: bool = False) -> bytes:
    """Encodes a plan without its blocks. `same`: its layout is that of the last step, and is not encoded either."""
    layout = None if same else plan.layout
    return _encode(_ForwardPlan(plan.tokens, layout, plan.soft_embeddings, plan.self_conditioning, plan.writes))


def decode_forward(data: bytes, last_layout: BatchLayout | None = None) -> StepPlan:
    """Decodes a result of `encode_forward`.

    Args:
        data: the encoded plan.
        last_layout: layout of the last step, for a plan without layout.

    Raises:
        ValueError: the data is invalid, or neither the plan nor the last step has a layout.
    """
    plan = msgspec.msgpack.decode(data, type=_ForwardPlan, dec_hook=decode_array)
    layout = plan.layout or last_layout
    if layout is None:
        raise ValueError("the first plan has no layout")
    return StepPlan(plan.tokens, layout, plan.soft_embeddings, plan.self_conditioning, plan.writes)


def encode_blocks(blocks: step_plan.DenoiseBlocks | None) -> bytes:
    """Encodes the blocks of a step without grammars, forced tokens and logprobs, which only rank 0 applies."""
    if blocks is None:
        return b""
    return _encode(replace(blocks, grammar_blocks=(), forced_tokens=(), num_logprobs=None, per_request=()))


def decode_blocks(data: bytes, get_algorithm: Callable[[str], UnmaskingAlgorithm]) -> step_plan.DenoiseBlocks | None:
    """Decodes a result of `encode_blocks`. `get_algorithm` returns an algorithm by its key.

    Raises:
        ValueError: the data is invalid.
    """

    def decode_value(kind: type, value: Any) -> Any:
        return get_algorithm(value) if kind is UnmaskingAlgorithm else decode_array(kind, value)

    return msgspec.msgpack.decode(data, type=step_plan.DenoiseBlocks, dec_hook=decode_value) if data else None


def _encode(plan: _ForwardPlan | step_plan.DenoiseBlocks) -> bytes:
    return msgspec.msgpack.encode(plan, enc_hook=_encode_value)


def _encode_value(value: object) -> Any:
    return value.key if isinstance(value, UnmaskingAlgorithm) else encode_array(value)

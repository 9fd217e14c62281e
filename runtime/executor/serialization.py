"""Encodes step plans for messages between ranks, and decodes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec

from runtime.algorithms.base import UnmaskingAlgorithm
from runtime.executor.rpc import decode_array, encode_array
from runtime.scheduling import step_plan
from runtime.scheduling.step_plan import StepPlan


def encode_forward(plan: StepPlan) -> bytes:
    """Encodes a plan without its blocks."""
    return _encode(replace(plan, blocks=None))


def decode_forward(data: bytes) -> StepPlan:
    """Decodes a result of `encode_forward`.

    Raises:
        ValueError: the data is invalid.
    """
    return msgspec.msgpack.decode(data, type=StepPlan, dec_hook=decode_array)


def encode_blocks(blocks: step_plan.DenoiseBlocks | None) -> bytes:
    """Encodes the blocks of a step without grammars, reads and content, which only rank 0 uses."""
    if blocks is None:
        return b""
    return _encode(replace(blocks, grammar_blocks=(), reads=(), tokens=None, per_request=()))


def decode_blocks(data: bytes, get_algorithm: Callable[[str], UnmaskingAlgorithm]) -> step_plan.DenoiseBlocks | None:
    """Decodes a result of `encode_blocks`. `get_algorithm` returns an algorithm by its key.

    Raises:
        ValueError: the data is invalid.
    """

    def decode_value(kind: type, value: Any) -> Any:
        return get_algorithm(value) if kind is UnmaskingAlgorithm else decode_array(kind, value)

    return msgspec.msgpack.decode(data, type=step_plan.DenoiseBlocks, dec_hook=decode_value) if data else None


def _encode(plan: StepPlan | step_plan.DenoiseBlocks) -> bytes:
    return msgspec.msgpack.encode(plan, enc_hook=_encode_value)


def _encode_value(value: object) -> Any:
    return value.key if isinstance(value, UnmaskingAlgorithm) else encode_array(value)

"""Requests that read the probabilities of tokens behind a prompt: one denoising step, without output."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from runtime.request.block_layout import CANVAS_UNIT
from runtime.request.engine_messages import DecodingParams, EngineInfo, RequestSpec
from runtime.request.field_spec import BLOCK_LENGTH, CANVAS_LENGTH, FULL_CANVAS, SUB_BLOCK
from runtime.request.resolve import SCORING_VALUES, TOO_LONG, RequestContext, check_pages
from runtime.request.validation import refuse


@dataclass(frozen=True)
class ReadTemplate:
    """The output of a read.

    Attributes:
        tokens: ids by position. None: a slot, whose distribution is read.
        end, pad: ids that fill a canvas of noise behind `tokens`. Models with masks do not read them.
    """

    tokens: Sequence[int | None]
    end: int
    pad: int


def slot_capacity(prompt_len: int, info: EngineInfo) -> int:
    """Returns how many positions behind a prompt one forward can read: the rest of the prompt's block, or a canvas."""
    left = info.max_model_len - prompt_len
    if info.truncate_last_block:
        return left
    end = info.block_layout.block_start(prompt_len, prompt_len) + info.block_size
    return min(end - prompt_len, left)


def canvas_size(length: int, info: EngineInfo) -> int:
    """Returns the positions of the output of a read whose template has `length` tokens."""
    if info.mask_token_id is not None:
        return length
    behind = length + 1 + (length > 1)  # the end of the turn, and a pad behind several lines
    return min(-(-behind // CANVAS_UNIT) * CANVAS_UNIT, info.block_size)


def read_spec(
    prompt: Sequence[int], template: ReadTemplate, ids: Sequence[int], info: EngineInfo, context: RequestContext, *,
    param: str, cache_salt: str = "",
) -> RequestSpec:  # fmt: skip
    """Returns the request that reads the log-probabilities of `ids` at each slot of a template behind a prompt.

    All slots are read in the same forward, in which each of them is a mask, or noise in a canvas.

    Args:
        prompt: validated token ids.
        context: id, tenant and adapter of the request.
        param: field for error messages.

    Raises:
        RequestError: prompt and template are too long.
    """
    size = canvas_size(len(template.tokens), info)
    if len(prompt) + size > info.max_model_len:
        why = f"its prompt has {len(prompt)} tokens and its answer {size}; the model's length is {info.max_model_len}"
        raise refuse(param, f"{why}: shorten the state or the question", code=TOO_LONG)
    values = info.defaults().values  # the algorithm runs no step, so any will do
    every = SCORING_VALUES | {BLOCK_LENGTH: size, SUB_BLOCK: info.block_size, CANVAS_LENGTH: size, FULL_CANVAS: True}
    values |= {name: value for name, value in every.items() if name in values}
    check_pages(info.block_layout.of_request(values).total_len(len(prompt), size), info, param)
    behind = [template.end, *[template.pad] * size][: size - len(template.tokens)]
    pinned = {at: token for at, token in enumerate([*template.tokens, *behind]) if token is not None}
    # noise depends on the prompt alone, so that repeated requests have the same answer
    seed = hashlib.blake2b(array("q", prompt).tobytes(), digest_size=8).digest()
    return RequestSpec(
        id=context.id,
        prompt=list(prompt),
        max_tokens=size,
        seed=int.from_bytes(seed, "little"),
        ignore_eos=True,
        decoding=DecodingParams(algorithm=info.default_algorithm, values=values),
        read_ids=list(ids),
        pinned_tokens=pinned,
        cache_salt=cache_salt,
        parent_id=context.parent_id,
        tenant=context.tenant,
        adapter=context.adapter or info.default_adapter,
    )

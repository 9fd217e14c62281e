"""What users ask for (``SamplingParams``) and its one resolution against a loaded engine (``RequestSpec``).

Whatever can be wrong with a request is found here, before the engine hears of it (runtime.md 4). Pure; no torch.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from runtime.decoding import resolve_decoding
from runtime.engine.io import EngineInfo, Report, RequestSpec
from runtime.errors import RequestError
from runtime.fields import flag, integer, number, refuse, shown, text

MAX_STOPS, MAX_STOP_CHARS, MAX_CHOICES = 32, 1024, 128
GREEDY_BELOW = 1e-6  # a temperature under this is 0: dividing logits by it would only lose precision


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How to answer one prompt (runtime.md sections 2 and 7). ``None`` leaves a value to the server and its model.

    Attributes:
        max_tokens: most tokens of the answer; without it, what the model's length leaves (512 on ``/generate``; 256
            where the strategy is `full`).
        temperature: 0 is greedy.
        top_p, top_k: limits of the distribution drawn from; top_k 0 is off.
        seed: any 64-bit integer; random without it. Choice i of `n` uses seed + i.
        stop: one string or several; the answer ends before the first that appears.
        ignore_eos: go on to `max_tokens` whatever the model says.
        max_nfe: most denoising steps.
        max_repetition_run: most repetitions of one token in a row.
        n: choices.
        decoding: how blocks are denoised (docs/decoding.md lists the fields).
        cache_salt: requests share cached prefixes only with requests of the same salt.
        num_denoising_steps: steps over all blocks of the answer, shared out evenly.
        block_length, use_local_leap, local_leap_anchor_threshold, local_leap_neighbor_threshold, local_leap_radius,
        confidence_metric, force_single_batch: dlmserve's names of decoding fields; its block_schedule and target_length
        are refused.
    """

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    stop: str | Sequence[str] | None = None
    ignore_eos: bool = False
    max_nfe: int | None = None
    max_repetition_run: int | None = None
    n: int = 1
    decoding: Mapping[str, Any] | None = None
    cache_salt: str | None = None
    num_denoising_steps: int | None = None
    block_length: int | None = None
    use_local_leap: bool | None = None
    local_leap_anchor_threshold: float | None = None
    local_leap_neighbor_threshold: float | None = None
    local_leap_radius: int | None = None
    confidence_metric: str | None = None
    force_single_batch: bool | None = None
    block_schedule: str | None = None
    target_length: int | None = None


def resolve(
    params: SamplingParams,
    prompt: Sequence[int],
    info: EngineInfo,
    *,
    id: str,
    report: Report = "final",
    default_max_tokens: int | None = None,
    names: Mapping[str, str] | None = None,
    group: str = "",
    owner: str = "",
) -> RequestSpec:
    """The checked request, with every value decided.

    Args:
        prompt: token ids; the mask's id is an ordinary id here (decoding.md 1).
        default_max_tokens: for a request that names no `max_tokens`, unless the strategy says how many; less where the
            model's length leaves less.
        names: how the client spelt a field where that differs ({"prompt": "messages"}).
        group, owner: what is sent at once and who sends it, for fair shares (``runtime.engine.queue``).

    Raises:
        RequestError: with the path of the field that is wrong.
    """
    named = dict(names or {})

    def at(field: str) -> str:
        return named.get(field, field)

    ids = check_prompt(prompt, info, param=at("prompt"))
    max_tokens = _max_tokens(params, len(ids), info, default_max_tokens, at)
    _check_pages(info.tiling.covered(len(ids), max_tokens), info, at("max_tokens"))
    stop_strings(params.stop, param=at("stop"))
    integer(at("n"), params.n, 1, MAX_CHOICES, default=1)

    temperature = number(at("temperature"), params.temperature, 0, 100, default=info.temperature)
    top_k = integer(at("top_k"), params.top_k, -1, 2**31, default=info.top_k)
    seed = integer(at("seed"), params.seed, -(2**63), 2**64 - 1, default=secrets.randbits(63))
    return RequestSpec(
        id=id,
        prompt=ids,
        max_tokens=max_tokens,
        temperature=0.0 if temperature < GREEDY_BELOW else temperature,
        top_p=number(at("top_p"), params.top_p, 0, 1, default=info.top_p, above_low=True),
        top_k=min(max(top_k, 0), info.vocab_size),
        seed=seed % 2**64,
        ignore_eos=flag(at("ignore_eos"), params.ignore_eos),
        max_nfe=integer(at("max_nfe"), params.max_nfe, 1, 2**31, default=None),
        max_repetition_run=integer(at("max_repetition_run"), params.max_repetition_run, 1, 2**31, default=None),
        decoding=resolve_decoding(params, info, len(ids), max_tokens, at("decoding")),
        report=report,
        cache_salt=text(at("cache_salt"), params.cache_salt, 256),
        group=group,
        owner=owner,
    )


def choices(spec: RequestSpec, n: int) -> list[RequestSpec]:
    """The `n` requests of one prompt: ids ``id-i``, seeds seed + i (decoding.md 3.1)."""
    if n == 1:
        return [spec]
    return [msgspec.structs.replace(spec, id=f"{spec.id}-{i}", seed=(spec.seed + i) % 2**64) for i in range(n)]


def stop_strings(stop: object, param: str = "stop") -> tuple[str, ...]:
    """The stop strings as a tuple without repetition."""
    if stop is None:
        return ()
    items = [stop] if isinstance(stop, str) else stop
    if not isinstance(items, list | tuple) or not all(isinstance(s, str) for s in items):
        raise refuse(param, "must be a string or a list of strings")
    if any(not s for s in items):
        raise refuse(param, "an empty string would stop at once; leave it out")
    if len(items) > MAX_STOPS or any(len(s) > MAX_STOP_CHARS for s in items):
        raise refuse(param, f"at most {MAX_STOPS} strings of {MAX_STOP_CHARS} characters")
    return tuple(dict.fromkeys(items))


def check_prompt(prompt: Sequence[int], info: EngineInfo, param: str = "prompt") -> list[int]:
    """The prompt's ids as a list: not empty, in range, and leaving room for a token."""
    if isinstance(prompt, str) or not isinstance(prompt, Sequence):
        raise refuse(param, "must be a list of token ids")
    ids = list(prompt)
    if not ids:
        raise refuse(param, "is empty; give at least one token")
    check_length(ids, info, param)
    check_ids(ids, info, param)
    return ids


def check_length(ids: Sequence[int], info: EngineInfo, param: str) -> None:
    """Raises RequestError where a prompt leaves no room for a token."""
    if len(ids) >= info.max_model_len:
        raise RequestError(
            f"{param}: has {len(ids)} tokens, and the model's length is {info.max_model_len}, the answer included; "
            "shorten it",
            param=param,
            code="context_length_exceeded",
        )


def check_ids(ids: Sequence[int], info: EngineInfo, param: str) -> None:
    """Ids that a prompt may hold; the first that it may not is named by its place."""
    if not ids or (set(map(type, ids)) == {int} and min(ids) >= 0 and max(ids) <= info.max_token_id):
        return
    for i, token in enumerate(ids):
        if type(token) is not int:
            raise refuse(f"{param}[{i}]", f"{shown(token)} is not a token id (an integer)")
        if token < 0 or token > info.max_token_id:  # the place is spelt out only for what may be wrong
            check_id(token, info, f"{param}[{i}]")


def check_id(token: int, info: EngineInfo, param: str) -> None:
    """An id that a prompt may hold: one of the tokenizer's, or the mask's."""
    if not 0 <= token <= info.max_token_id and token != info.mask_token_id:
        raise refuse(param, f"{shown(token)} is not a token id of this model (0 to {info.max_token_id})")


def _max_tokens(params: SamplingParams, length: int, info: EngineInfo, default: int | None, at: Any) -> int:
    left = info.max_model_len - length
    name = at("max_tokens")
    wanted = integer(name, params.max_tokens, 1, 2**31, default=None)
    if wanted is None:
        default = info.default_max_tokens or default
        return left if default is None else min(default, left)
    if wanted > left:
        raise RequestError(
            f"{name}: {wanted} is more than the {left} tokens that the prompt of {length} leaves of the model's "
            f"length, {info.max_model_len}",
            param=name,
            code="context_length_exceeded",
        )
    return wanted


def _check_pages(positions: int, info: EngineInfo, param: str) -> None:
    """A request that could never run, even alone, is refused instead of waiting for ever."""
    pages = math.ceil(positions / info.page_size)
    if pages > info.num_pages:
        raise RequestError(
            f"{param}: prompt and answer need {pages} cache pages of {info.page_size} tokens and the server has "
            f"{info.num_pages}; ask for fewer tokens",
            param=param,
            code="context_length_exceeded",
        )

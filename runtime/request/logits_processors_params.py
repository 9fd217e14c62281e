"""Resolves the logits processors of a request: logit bias, penalties and min_tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from runtime.request.engine_messages import DecodingParams, EngineInfo, LogitsProcessorParams
from runtime.request.sampling_params import At, SamplingParams
from runtime.request.validation import number, preview, refuse

MAX_BIASED_IDS = 1024  # of a logit_bias
MAX_BIAS = 100.0
NEUTRAL = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "min_tokens": 0}


def resolve_logits_processors(
    params: SamplingParams, decoding: DecodingParams, info: EngineInfo, at: At, *, is_infill: bool
) -> LogitsProcessorParams | None:
    """Returns the logits processors of a request; None if it has none with an effect.

    Args:
        params: validated by ``sampling_params.check_fields``.
        at: maps a field to the name that the client used.
        is_infill: the request is an infill, whose output has a fixed length.

    Raises:
        RequestError: a field is invalid or has no effect.
    """
    bias = _bias(params.logit_bias, info, at("logit_bias"))
    changed = {name: value for name in NEUTRAL if (value := getattr(params, name)) not in (None, NEUTRAL[name])}
    names = [*(["logit_bias"] if bias else []), *changed]
    if not names:
        return None
    if info.mask_token_id is None:
        raise refuse(at(names[0]), "has no effect for models that denoise noise instead of masks; leave it out")
    if "min_tokens" in changed:
        _check_min_tokens(params, decoding, info, at, is_infill=is_infill)
    return LogitsProcessorParams(
        bias=bias,
        repetition=float(changed.get("repetition_penalty", 1.0)),
        presence=float(changed.get("presence_penalty", 0.0)),
        frequency=float(changed.get("frequency_penalty", 0.0)),
        min_tokens=int(changed.get("min_tokens", 0)),
    )


def check_stop_ids(ids: Sequence[int] | None, info: EngineInfo, param: str) -> list[int]:
    """Returns the ids without duplicates. Raises RequestError for an id that the model cannot predict."""
    for i, token in enumerate(ids or ()):
        if not 0 <= token <= info.max_token_id:
            raise refuse(
                f"{param}[{i}]", f"{preview(token)} is not a token id of this model (0 to {info.max_token_id})"
            )
    return list(dict.fromkeys(ids or ()))


def _check_min_tokens(
    params: SamplingParams, decoding: DecodingParams, info: EngineInfo, at: At, *, is_infill: bool
) -> None:
    """Raises RequestError if `min_tokens` is impossible or unsupported for the request."""
    min_tokens, max_tokens = params.min_tokens, params.max_tokens
    assert min_tokens is not None
    if max_tokens is not None and min_tokens > max_tokens:
        raise refuse(at("min_tokens"), f"{min_tokens} is more than {at('max_tokens')}, {max_tokens}; ask for fewer")
    if params.structured_outputs is not None:
        name = at("structured_outputs")
        raise refuse(at("min_tokens"), f"an answer that keeps to {name} ends where its grammar does; leave it out")
    if is_infill:
        raise refuse(at("min_tokens"), "has no meaning where every hole is filled; leave it out")
    algorithm = info.algorithm(decoding.algorithm)
    if algorithm is not None and algorithm.reorders_tokens:
        raise refuse(
            at("min_tokens"),
            f"is not supported with {algorithm.key}, which moves tokens to other positions; leave it out",
        )


def _bias(logit_bias: object, info: EngineInfo, param: str) -> dict[int, float]:
    """Returns the bias by token id, without zeros."""
    if logit_bias is None:
        return {}
    if not isinstance(logit_bias, Mapping):
        raise refuse(param, f"{preview(logit_bias)} is not an object of token ids and numbers")
    if len(logit_bias) > MAX_BIASED_IDS:
        raise refuse(param, f"has {len(logit_bias)} ids; at most {MAX_BIASED_IDS}")
    found: dict[int, float] = {}
    for key, value in logit_bias.items():
        token = _token(key)
        if token is None or token > info.max_token_id:
            raise refuse(param, f"{preview(key)} is not a token id of this model (0 to {info.max_token_id})")
        found[token] = number(f"{param}[{token}]", value, -MAX_BIAS, MAX_BIAS)
    return {token: value for token, value in found.items() if value}


def _token(key: object) -> int | None:
    """Returns the token id of a key, which is text in JSON, or an int; None if it is invalid."""
    if isinstance(key, str):
        return int(key) if key.isascii() and key.isdecimal() and len(key) <= 10 else None
    return key if type(key) is int and key >= 0 else None

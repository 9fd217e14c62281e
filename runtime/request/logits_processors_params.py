"""What a request asks to be done to logits before a token is chosen, checked against a loaded engine: a `Shaping`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from runtime.request.engine_messages import DecodingParams, EngineInfo, Shaping
from runtime.request.sampling_params import At, SamplingParams
from runtime.request.validation import number, refuse, shown

MAX_BIASED = 1024  # ids of a logit_bias
MOST_BIAS = 100.0
NEUTRAL = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "min_tokens": 0}


def resolve_shaping(
    params: SamplingParams, decoding: DecodingParams, info: EngineInfo, at: At, *, filled: bool
) -> Shaping | None:
    """None where nothing is asked, or all of it at values that change nothing.

    Args:
        params: checked by ``params.check_fields``. at: how the client spelt a field. filled: nothing may end the answer
            anyway, as of texts with holes.

    Raises:
        RequestError: naming the field that is wrong, or has no meaning here.
    """
    bias = _bias(params.logit_bias, info, at("logit_bias"))
    asked = {name: value for name in NEUTRAL if (value := getattr(params, name)) not in (None, NEUTRAL[name])}
    names = [*(["logit_bias"] if bias else []), *asked]
    if not names:
        return None
    if info.mask_token_id is None:
        raise refuse(
            at(names[0]), "has no meaning where noise is denoised, all of which changes with each step; leave it out"
        )
    if "min_tokens" in asked:
        _check_least(params, decoding, info, at, filled=filled)
    return Shaping(
        bias=bias,
        repetition=float(asked.get("repetition_penalty", 1.0)),
        presence=float(asked.get("presence_penalty", 0.0)),
        frequency=float(asked.get("frequency_penalty", 0.0)),
        min_tokens=int(asked.get("min_tokens", 0)),
    )


def check_stop_ids(ids: Sequence[int] | None, info: EngineInfo, param: str) -> list[int]:
    """Ids that the model may choose, each once."""
    for i, token in enumerate(ids or ()):
        if not 0 <= token <= info.max_token_id:
            raise refuse(f"{param}[{i}]", f"{shown(token)} is not a token id of this model (0 to {info.max_token_id})")
    return list(dict.fromkeys(ids or ()))


def _check_least(params: SamplingParams, decoding: DecodingParams, info: EngineInfo, at: At, *, filled: bool) -> None:
    """Raises RequestError where so many tokens cannot be, or what could end the answer has no fixed place in it."""
    least, most = params.min_tokens, params.max_tokens
    assert least is not None
    if most is not None and least > most:
        raise refuse(at("min_tokens"), f"{least} is more than {at('max_tokens')}, {most}; ask for fewer")
    if params.structured_outputs is not None:
        name = at("structured_outputs")
        raise refuse(at("min_tokens"), f"an answer that keeps to {name} ends where its grammar does; leave it out")
    if filled:
        raise refuse(at("min_tokens"), "has no meaning where every hole is filled; leave it out")
    rule = info.rule(decoding.algorithm)
    if rule is not None and rule.reorders_tokens:
        raise refuse(
            at("min_tokens"), f"is not built with {rule.key}, which moves tokens from place to place here; leave it out"
        )


def _bias(given: object, info: EngineInfo, param: str) -> dict[int, float]:
    """By token id; what adds nothing is left out."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise refuse(param, f"{shown(given)} is not an object of token ids and numbers")
    if len(given) > MAX_BIASED:
        raise refuse(param, f"has {len(given)} ids; at most {MAX_BIASED}")
    found: dict[int, float] = {}
    for key, value in given.items():
        token = _token(key)
        if token is None or token > info.max_token_id:
            raise refuse(param, f"{shown(key)} is not a token id of this model (0 to {info.max_token_id})")
        found[token] = number(f"{param}[{token}]", value, -MOST_BIAS, MOST_BIAS)
    return {token: value for token, value in found.items() if value}


def _token(key: object) -> int | None:
    """Of a JSON object's key, which is text, or of an integer."""
    if isinstance(key, str):
        return int(key) if key.isascii() and key.isdecimal() and len(key) <= 10 else None
    return key if type(key) is int and key >= 0 else None

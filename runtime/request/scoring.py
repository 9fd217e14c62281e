"""A request that scores a text instead of writing one: what the text says is recited, and each token's log-probability
told (docs/decoding.md, Log-probabilities of a prompt)."""

from __future__ import annotations

from collections.abc import Sequence

from runtime.errors import RequestError
from runtime.request.engine_messages import DecodingParams, EngineInfo, RequestSpec
from runtime.request.field_spec import RuleInfo, Value
from runtime.request.validation import refuse

# Of what a server may have set otherwise: every token stands as it is recited, in full forwards.
MOST_STRIDE = 4096
PLAIN: dict[str, Value] = {"remask_threshold": 0.0, "cache": "none", "block_cache": False}


def score_spec(
    ids: Sequence[int],
    info: EngineInfo,
    *,
    id: str,
    param: str,
    first: int = 1,
    logprobs: int = 0,
    stride: int = 1,
    cache_salt: str = "",
    group: str = "",
    owner: str = "",
    adapter: str = "",
) -> RequestSpec:
    """Of checked ids, those from `first` on are scored, `stride` of them a forward, each given all before it.

    Raises:
        RequestError: naming `param`, where this engine cannot.
    """
    if len(ids) > info.max_model_len:
        raise RequestError(
            f"{param}: {len(ids)} tokens to score are more than the model's length, {info.max_model_len}; shorten them",
            param=param, code="context_length_exceeded",
        )  # fmt: skip
    rule = _rule(info, param)
    values = info.defaults(rule.key).values
    values |= {name: value for name, value in PLAIN.items() if name in values}
    return RequestSpec(
        id=id,
        prompt=list(ids[:first]),
        max_tokens=len(ids) - first,
        ignore_eos=True,
        decoding=DecodingParams(algorithm=rule.key, values=values),
        logprobs=logprobs,
        recited=list(ids[first:]),
        stride=stride,
        cache_salt=cache_salt,
        group=group,
        owner=owner,
        adapter=adapter or info.default_adapter,
    )


def _rule(info: EngineInfo, param: str) -> RuleInfo:
    """One that leaves blocks as they are which something else fills."""
    if info.mask_token_id is None:
        raise refuse(param, "prompts cannot be scored where noise is denoised: nothing of it is masked; leave it out")
    for rule in info.rules:
        if rule.supports_grammar:
            return rule
    raise refuse(
        param, f"prompts cannot be scored with --decoding-strategy {info.strategy}, which revises all of a block; "
        "leave it out",
    )  # fmt: skip

"""Builds requests that score a text: its tokens are forced, and the logprob of each is returned.

See docs/guide/decoding.md#log-probabilities-of-a-prompt.
"""

from __future__ import annotations

from collections.abc import Sequence

from runtime.errors import RequestError
from runtime.request.engine_messages import DecodingParams, EngineInfo, RequestSpec
from runtime.request.field_spec import AlgorithmInfo, Value
from runtime.request.validation import refuse

MAX_TOKENS_PER_STEP = 4096
# Values that override defaults of the server: forced tokens stay, and every step forwards the complete context.
SCORING_VALUES: dict[str, Value] = {"remask_threshold": 0.0, "cache": "none", "block_cache": False}


def score_spec(
    ids: Sequence[int],
    info: EngineInfo,
    *,
    id: str,
    param: str,
    prompt_len: int = 1,
    logprobs: int = 0,
    tokens_per_step: int = 1,
    cache_salt: str = "",
    parent_id: str = "",
    tenant: str = "",
    adapter: str = "",
) -> RequestSpec:
    """Returns the request that scores the ids from `prompt_len` on, each conditioned on all ids before it.

    Args:
        ids: validated token ids.
        param: field for error messages.
        logprobs: number of most probable tokens to return per token.
        tokens_per_step: scored tokens per forward pass.

    Raises:
        RequestError: the text is too long, or the engine cannot score.
    """
    if len(ids) > info.max_model_len:
        raise RequestError(
            f"{param}: {len(ids)} tokens to score are more than the model's length, {info.max_model_len}; shorten them",
            param=param, code="context_length_exceeded",
        )  # fmt: skip
    algorithm = _scoring_algorithm(info, param)
    values = info.defaults(algorithm.key).values
    values |= {name: value for name, value in SCORING_VALUES.items() if name in values}
    return RequestSpec(
        id=id,
        prompt=list(ids[:prompt_len]),
        max_tokens=len(ids) - prompt_len,
        ignore_eos=True,
        decoding=DecodingParams(algorithm=algorithm.key, values=values),
        logprobs=logprobs,
        forced_token_ids=list(ids[prompt_len:]),
        forced_tokens_per_step=tokens_per_step,
        cache_salt=cache_salt,
        parent_id=parent_id,
        tenant=tenant,
        adapter=adapter or info.default_adapter,
    )


def _scoring_algorithm(info: EngineInfo, param: str) -> AlgorithmInfo:
    """Returns an algorithm that supports forced tokens."""
    if info.mask_token_id is None:
        raise refuse(param, "prompts cannot be scored by a model without a mask token; leave it out")
    for algorithm in info.algorithms:
        if algorithm.supports_grammar:
            return algorithm
    raise refuse(
        param, f"prompts cannot be scored with --decoding-strategy {info.strategy}, which revises all positions of a "
        "block; leave it out",
    )  # fmt: skip

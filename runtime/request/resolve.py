"""The one resolution of what a user asks for (``SamplingParams``) against a loaded engine: a ``RequestSpec``.

All errors of a request are found here, before it reaches the engine; docs/server.md#errors lists their status codes.
The function is pure and needs no torch.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence

import msgspec

from runtime.errors import RequestError
from runtime.request.decoding import resolve_decoding
from runtime.request.engine_messages import DecodingParams, EngineInfo, Report, RequestSpec
from runtime.request.logits_processors_params import check_stop_ids, resolve_shaping
from runtime.request.sampling_params import At, SamplingParams, check_fields
from runtime.request.structured import grammar_of
from runtime.request.validation import refuse, shown

SUPPRESS = "suppress_eos"  # the rules' field of that name
GREEDY_BELOW = 1e-6  # a temperature under this is 0: dividing logits by it would only lose precision


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
    adapter: str = "",
    given: Mapping[int, int] | None = None,
    grammar: str = "",
) -> RequestSpec:
    """The checked request, with every value decided.

    Args:
        prompt: token ids, in which the mask id is an ordinary id (docs/decoding-rules.md#position-states).
        default_max_tokens: for a request that names no `max_tokens`, unless the strategy says how many; less where the
            model's length leaves less.
        names: how the client spelt a field where that differs ({"prompt": "messages"}).
        group, owner: what is sent at once and who sends it, for fair shares (``runtime.engine.request_queue``).
        adapter: the name of one that the engine has; "": the one that all requests have, else the base model.
        given: ids of the answer that stand from the start, by their offsets. What is between them is filled, every
            position of it: no end of sequence is chosen there, unless the request says how those are dealt with.
        grammar: that the answer keeps to in place of `structured_outputs`; `names` say what asks for it.

    Raises:
        RequestError: with the path of the field that is wrong.
    """
    named = dict(names or {})

    def at(field: str) -> str:
        return named.get(field, field)

    ids = check_prompt(prompt, info, param=at("prompt"))
    check_fields(params, at)
    max_tokens = _max_tokens(params.max_tokens, len(ids), info, default_max_tokens, at("max_tokens"))
    _check_pages(info.block_layout.total_len(len(ids), max_tokens), info, at("max_tokens"))
    temperature = info.temperature if params.temperature is None else float(params.temperature)
    top_k = info.top_k if params.top_k is None else params.top_k
    seed = secrets.randbits(63) if params.seed is None else params.seed
    decoding = resolve_decoding(params, info, len(ids), max_tokens, at("decoding"))
    return RequestSpec(
        id=id,
        prompt=ids,
        max_tokens=max_tokens,
        temperature=0.0 if temperature < GREEDY_BELOW else temperature,
        top_p=info.top_p if params.top_p is None else float(params.top_p),
        top_k=min(max(top_k, 0), info.vocab_size),
        min_p=params.min_p or 0.0,
        seed=seed % 2**64,
        ignore_eos=bool(params.ignore_eos) or given is not None,
        stop_ids=check_stop_ids(params.stop_token_ids, info, at("stop_token_ids")),
        shaping=resolve_shaping(params, decoding, info, at, filled=given is not None),
        max_nfe=params.max_nfe,
        max_repetition_run=params.max_repetition_run,
        decoding=decoding if given is None else _without_end(decoding),
        logprobs=_told(params, decoding, info, at("logprobs"), filled=given is not None),
        grammar=_grammar(params, decoding, info, at, grammar, filled=given is not None),
        given=dict(given or {}),
        report=report,
        cache_salt=params.cache_salt or "",
        group=group,
        owner=owner,
        adapter=adapter or info.default_adapter,
    )


def _grammar(
    params: SamplingParams, decoding: DecodingParams, info: EngineInfo, at: At, made: str, *, filled: bool
) -> str:
    """What the answer keeps to, "" where nothing is asked; refused with what would not let it."""
    if params.structured_outputs is None and not made:
        return ""
    name, path = at("structured_outputs"), at("decoding")
    if info.unstructured:
        raise refuse(name, f"cannot be kept to here, for {info.unstructured}; leave it out")
    if filled:
        raise refuse(name, "is not built for texts with holes; leave it out")
    rule = info.rule(decoding.algorithm)
    if rule is None or not rule.supports_grammar:
        others = " or ".join(rule.key for rule in info.rules if rule.supports_grammar) or "no algorithm of this server"
        raise refuse(name, f"goes with {others}, not with {decoding.algorithm}; set {path}.algorithm, or leave it out")
    if decoding.values.get("remask_threshold"):
        raise refuse(name, f"a remasked token may be one that the grammar needs; set {path}.remask_threshold to 0")
    if decoding.values.get(SUPPRESS, "none") != "none":
        raise refuse(name, f"ends where its grammar does; leave {path}.{SUPPRESS} out")
    if params.ignore_eos:
        raise refuse(name, f"ends where its grammar does; leave {at('ignore_eos')} out")
    if decoding.total_steps is not None:
        raise refuse(name, f"takes the steps that it takes; leave {at('num_denoising_steps')} out")
    return made or grammar_of(params.structured_outputs, name)


def _told(params: SamplingParams, decoding: DecodingParams, info: EngineInfo, name: str, *, filled: bool) -> int | None:
    """How many of the likeliest tokens are told; refused where a position's tokens are not its own."""
    if params.logprobs is None:
        return None
    if filled:
        raise refuse(name, "is not built for texts with holes; leave it out")
    rule = info.rule(decoding.algorithm)
    if rule is not None and rule.reorders_tokens:
        raise refuse(name, f"is not built with {rule.key}, which moves tokens from place to place here; leave it out")
    return params.logprobs


def _without_end(decoding: DecodingParams) -> DecodingParams:
    """That no position may choose an end of sequence, where the rule has a say in it and the request said nothing."""
    if decoding.values.get(SUPPRESS) != "none":
        return decoding
    return msgspec.structs.replace(decoding, values=decoding.values | {SUPPRESS: "logits"})


def choices(spec: RequestSpec, n: int) -> list[RequestSpec]:
    """Returns the `n` requests of one prompt: ids ``id-i``, seeds seed + i (docs/decoding-rules.md#random-numbers)."""
    if n == 1:
        return [spec]
    return [msgspec.structs.replace(spec, id=f"{spec.id}-{i}", seed=(spec.seed + i) % 2**64) for i in range(n)]


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


def _max_tokens(wanted: int | None, length: int, info: EngineInfo, default: int | None, param: str) -> int:
    left = info.max_model_len - length
    if wanted is None:
        default = info.default_max_tokens or default
        return left if default is None else min(default, left)
    if wanted > info.max_model_len:
        raise RequestError(
            f"{param}: {wanted} is more than the model's length, {info.max_model_len}; ask for less",
            param=param,
            code="context_length_exceeded",
        )
    return min(wanted, left)  # many clients ask for a round number, whatever the prompt


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

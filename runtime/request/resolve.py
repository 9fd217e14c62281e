"""Resolves the parameters of a request (``SamplingParams``) against a loaded engine, to a ``RequestSpec``.

All errors of a request are detected here, before it reaches the engine. docs/reference/api.md#errors lists their status
codes. The function is pure and needs no torch.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from runtime.errors import RequestError
from runtime.request.decoding import resolve_decoding
from runtime.request.engine_messages import DecodingParams, EngineInfo, RequestSpec, StreamMode
from runtime.request.logits_processors_params import check_stop_ids, resolve_logits_processors
from runtime.request.sampling_params import At, SamplingParams, check_fields
from runtime.request.structured import grammar_of
from runtime.request.validation import preview, refuse

SUPPRESS_EOS = "suppress_eos"  # name of the field of algorithms
GREEDY_BELOW = 1e-6  # lower temperatures are treated as 0: dividing logits by them only loses precision


@dataclass(frozen=True)
class RequestContext:
    """What a request has besides its parameters and its prompt.

    Attributes:
        default_max_tokens: for a request without `max_tokens`, unless the strategy has a default; limited by the
            context length of the model.
        names: names that the client used instead of those of the fields, such as {"prompt": "messages"}.
        parent_id: id of the client's request, which may consist of several; for fair scheduling
            (``runtime.engine.request_queue``).
        tenant: API key of the client, for fair scheduling.
        adapter: name of a LoRA adapter; "": the default adapter, else the base model.
        prefilled_tokens: fixed ids of an infill by offset in the output. All other positions are unmasked, and
            end-of-sequence tokens are suppressed unless the request sets `suppress_eos`.
        grammar: grammar of the output instead of `structured_outputs`. `names` has the field that it is derived from.
    """

    id: str
    stream_mode: StreamMode = "final"
    default_max_tokens: int | None = None
    names: Mapping[str, str] = field(default_factory=dict)
    parent_id: str = ""
    tenant: str = ""
    adapter: str = ""
    prefilled_tokens: Mapping[int, int] | None = None
    grammar: str = ""


def resolve(params: SamplingParams, prompt: Sequence[int], info: EngineInfo, context: RequestContext) -> RequestSpec:
    """Validates a request and resolves all of its values.

    Args:
        prompt: token ids, in which the mask id is an ordinary id (docs/research/decoding-rules.md#position-states).

    Raises:
        RequestError: a field is invalid; it has the path of the field.
    """

    def at(field: str) -> str:
        return context.names.get(field, field)

    ids = check_prompt(prompt, info, param=at("prompt"))
    check_fields(params, at)
    max_tokens = _max_tokens(params.max_tokens, len(ids), info, context.default_max_tokens, at("max_tokens"))
    _check_pages(info.block_layout.total_len(len(ids), max_tokens), info, at("max_tokens"))
    temperature = info.temperature if params.temperature is None else float(params.temperature)
    top_k = info.top_k if params.top_k is None else params.top_k
    seed = secrets.randbits(63) if params.seed is None else params.seed
    decoding = resolve_decoding(params, info, len(ids), max_tokens, at("decoding"))
    prefilled_tokens = context.prefilled_tokens
    is_infill = prefilled_tokens is not None
    return RequestSpec(
        id=context.id,
        prompt=ids,
        max_tokens=max_tokens,
        temperature=0.0 if temperature < GREEDY_BELOW else temperature,
        top_p=info.top_p if params.top_p is None else float(params.top_p),
        top_k=min(max(top_k, 0), info.vocab_size),
        min_p=params.min_p or 0.0,
        seed=seed % 2**64,
        ignore_eos=bool(params.ignore_eos) or is_infill,
        stop_ids=check_stop_ids(params.stop_token_ids, info, at("stop_token_ids")),
        logits_processors=resolve_logits_processors(params, decoding, info, at, is_infill=is_infill),
        max_nfe=params.max_nfe,
        max_repetition_run=params.max_repetition_run,
        decoding=_without_eos(decoding) if is_infill else decoding,
        logprobs=_logprobs(params, decoding, info, at("logprobs"), is_infill=is_infill),
        grammar=_grammar(params, decoding, info, at, context.grammar, is_infill=is_infill),
        prefilled_tokens=dict(prefilled_tokens or {}),
        stream_mode=context.stream_mode,
        cache_salt=params.cache_salt or "",
        parent_id=context.parent_id,
        tenant=context.tenant,
        adapter=context.adapter or info.default_adapter,
    )


def _grammar(
    params: SamplingParams, decoding: DecodingParams, info: EngineInfo, at: At, grammar: str, *, is_infill: bool
) -> str:
    """Returns the grammar of the output, "" if it has none. Raises RequestError for incompatible fields."""
    if params.structured_outputs is None and not grammar:
        return ""
    name, path = at("structured_outputs"), at("decoding")
    if info.structured_output_error:
        raise refuse(name, f"is not supported by this server ({info.structured_output_error}); leave it out")
    if is_infill:
        raise refuse(name, "is not supported for infill; leave it out")
    algorithm = info.algorithm(decoding.algorithm)
    if algorithm is None or not algorithm.supports_grammar:
        others = (
            " or ".join(other.key for other in info.algorithms if other.supports_grammar)
            or "no algorithm of this server"
        )
        raise refuse(name, f"goes with {others}, not with {decoding.algorithm}; set {path}.algorithm, or leave it out")
    if decoding.values.get("remask_threshold"):
        raise refuse(name, f"a remasked token may be one that the grammar needs; set {path}.remask_threshold to 0")
    if decoding.values.get(SUPPRESS_EOS, "none") != "none":
        raise refuse(name, f"ends where its grammar does; leave {path}.{SUPPRESS_EOS} out")
    if params.ignore_eos:
        raise refuse(name, f"ends where its grammar does; leave {at('ignore_eos')} out")
    if decoding.total_steps is not None:
        raise refuse(name, f"cannot be combined with {at('num_denoising_steps')}; leave that out")
    return grammar or grammar_of(params.structured_outputs, name)


def _logprobs(
    params: SamplingParams, decoding: DecodingParams, info: EngineInfo, name: str, *, is_infill: bool
) -> int | None:
    """Returns `logprobs`. Raises RequestError if tokens have no fixed position."""
    if params.logprobs is None:
        return None
    if is_infill:
        raise refuse(name, "is not supported for infill; leave it out")
    algorithm = info.algorithm(decoding.algorithm)
    if algorithm is not None and algorithm.reorders_tokens:
        raise refuse(
            name, f"is not supported with {algorithm.key}, which moves tokens to other positions; leave it out"
        )
    return params.logprobs


def _without_eos(decoding: DecodingParams) -> DecodingParams:
    """Suppresses end-of-sequence tokens, if the algorithm supports it and the request does not set it."""
    if decoding.values.get(SUPPRESS_EOS) != "none":
        return decoding
    return msgspec.structs.replace(decoding, values=decoding.values | {SUPPRESS_EOS: "logits"})


def expand_choices(spec: RequestSpec, n: int) -> list[RequestSpec]:
    """Returns the `n` requests of one prompt: ids ``id-i``, seeds seed + i.

    See docs/research/decoding-rules.md#random-numbers.
    """
    if n == 1:
        return [spec]
    return [msgspec.structs.replace(spec, id=f"{spec.id}-{i}", seed=(spec.seed + i) % 2**64) for i in range(n)]


def check_prompt(prompt: Sequence[int], info: EngineInfo, param: str = "prompt") -> list[int]:
    """Returns the ids of the prompt as a list. Raises RequestError if it is empty, too long or has invalid ids."""
    if isinstance(prompt, str) or not isinstance(prompt, Sequence):
        raise refuse(param, "must be a list of token ids")
    ids = list(prompt)
    if not ids:
        raise refuse(param, "is empty; give a text or token ids with at least one token, or messages for a chat")
    check_length(ids, info, param)
    check_ids(ids, info, param)
    return ids


def check_length(ids: Sequence[int], info: EngineInfo, param: str) -> None:
    """Raises RequestError if the context length leaves no space for an output token."""
    if len(ids) >= info.max_model_len:
        raise RequestError(
            f"{param}: has {len(ids)} tokens, and the model's length is {info.max_model_len}, the answer included; "
            "shorten it",
            param=param,
            code="context_length_exceeded",
        )


def check_ids(ids: Sequence[int], info: EngineInfo, param: str) -> None:
    """Raises RequestError for the first id that a prompt must not contain; the message has its index."""
    if not ids or (set(map(type, ids)) == {int} and min(ids) >= 0 and max(ids) <= info.max_token_id):
        return
    for i, token in enumerate(ids):
        if type(token) is not int:
            raise refuse(f"{param}[{i}]", f"{preview(token)} is not a token id (an integer)")
        if token < 0 or token > info.max_token_id:  # formats the index only for ids that may be invalid
            check_id(token, info, f"{param}[{i}]")


def check_id(token: int, info: EngineInfo, param: str) -> None:
    """Raises RequestError for an id that is neither in the tokenizer nor the mask."""
    if not 0 <= token <= info.max_token_id and token != info.mask_token_id:
        raise refuse(param, f"{preview(token)} is not a token id of this model (0 to {info.max_token_id})")


def _max_tokens(requested: int | None, length: int, info: EngineInfo, default: int | None, param: str) -> int:
    left = info.max_model_len - length
    if requested is None:
        default = info.default_max_tokens or default
        return left if default is None else min(default, left)
    if requested > info.max_model_len:
        raise RequestError(
            f"{param}: {requested} is more than the model's length, {info.max_model_len}; ask for less",
            param=param,
            code="context_length_exceeded",
        )
    return min(requested, left)  # many clients send a round number, independent of the prompt


def _check_pages(positions: int, info: EngineInfo, param: str) -> None:
    """Raises RequestError if the request needs more pages than the engine has."""
    pages = math.ceil(positions / info.page_size)
    if pages > info.num_pages:
        raise RequestError(
            f"{param}: prompt and answer need {pages} cache pages of {info.page_size} tokens and the server has "
            f"{info.num_pages}; ask for fewer tokens",
            param=param,
            code="context_length_exceeded",
        )

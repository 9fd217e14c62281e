"""Resolves the parameters of a request (``SamplingParams``) against a loaded engine, to a ``RequestSpec``.

All errors of a request are detected here, before it reaches the engine. docs/reference/api.md#errors lists their status
codes. The function is pure and needs no torch.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from runtime.errors import RequestError
from runtime.request.block_layout import BlockLayout
from runtime.request.decoding import resolve_decoding
from runtime.request.engine_messages import (
    DecodingParams,
    EngineInfo,
    LogitsProcessorParams,
    RequestSpec,
    StreamMode,
    StructuredLimits,
    ToolNames,
)
from runtime.request.field_spec import BLOCK_LENGTH, AlgorithmInfo, Value
from runtime.request.sampling_params import At, SamplingParams, check_fields
from runtime.request.structured import grammar_of, with_max_items
from runtime.request.validation import number, preview, refuse

MAX_BIASED_IDS = 1024  # maximum entries of a logit_bias
MAX_BIAS = 100.0
RANDOM_SEED = -1
NEUTRAL = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "min_tokens": 0}


SUPPRESS_EOS = "suppress_eos"  # name of the field of algorithms
GREEDY_BELOW = 1e-6  # lower temperatures are treated as 0: dividing logits by them only loses precision


MAX_TOKENS_PER_STEP = 4096
TOO_LONG = "context_length_exceeded"  # OpenAI's code
# Values that override defaults of the server: forced tokens stay, and every step forwards the complete context.
SCORING_VALUES: dict[str, Value] = {
    "remask_threshold": 0.0, "cache": "none", "block_cache": False, SUPPRESS_EOS: "none",
}  # fmt: skip


def resolve_logits_processors(
    params: SamplingParams, max_tokens: int, decoding: DecodingParams, info: EngineInfo, at: At, *, is_infill: bool
) -> LogitsProcessorParams | None:
    """Returns the logits processors of a request; None if it has none with an effect.

    Args:
        params: validated by ``sampling_params.check_fields``.
        max_tokens: maximum tokens of the output.
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
        _check_min_tokens(params, max_tokens, decoding, info, at, is_infill=is_infill)
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
            raise _not_a_token(f"{param}[{i}]", token, info)
    return list(dict.fromkeys(ids or ()))


def _check_min_tokens(
    params: SamplingParams, max_tokens: int, decoding: DecodingParams, info: EngineInfo, at: At, *, is_infill: bool
) -> None:
    """Raises RequestError if `min_tokens` is impossible or unsupported for the request."""
    min_tokens = params.min_tokens or 0
    if min_tokens > max_tokens:
        fix = f"lower it, or set a larger {at('max_tokens')}"
        raise refuse(at("min_tokens"), f"{min_tokens} is more than the {max_tokens} tokens of this output; {fix}")
    if params.structured_outputs is not None:
        name = at("structured_outputs")
        raise refuse(at("min_tokens"), f"cannot be combined with {name}: the grammar determines the end; leave it out")
    if is_infill:
        raise refuse(at("min_tokens"), "has no effect for infill; leave it out")
    _check_no_reordering(decoding, info, at("min_tokens"))


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
            raise _not_a_token(param, key, info)
        found[token] = number(f"{param}[{token}]", value, -MAX_BIAS, MAX_BIAS)
    return {token: value for token, value in found.items() if value}


def _token(key: object) -> int | None:
    """Returns the token id of a key, which is text in JSON, or an int; None if it is invalid."""
    if isinstance(key, str):
        return int(key) if key.isascii() and key.isdecimal() and len(key) <= 10 else None
    return key if type(key) is int and key >= 0 else None


@dataclass(frozen=True)
class RequestContext:
    """Context of a request in addition to its parameters and its prompt.

    Attributes:
        default_max_tokens: for a request without `max_tokens`, unless the strategy has a default; limited by the
            context length of the model.
        names: names that the client used instead of those of the fields, such as {"prompt": "messages"}.
        parent_id: id of the client's request, which may consist of several; for fair scheduling
            (``runtime.scheduling.request_queue``).
        tenant: API key of the client, for fair scheduling.
        adapter: name of a LoRA adapter; "": the default adapter, else the base model.
        pinned_tokens: ids of an infill that never change, by offset in the output. The other positions are unmasked.
            End-of-sequence tokens are suppressed unless the request sets `suppress_eos`.
        grammar: grammar of the output instead of `structured_outputs`. `names` has the field that it is derived from.
        tool_names: constrains the names of tool calls where the request and the engine allow grammars, if there is no
            other grammar.
    """

    id: str
    stream_mode: StreamMode = "final"
    default_max_tokens: int | None = None
    names: Mapping[str, str] = field(default_factory=dict)
    parent_id: str = ""
    tenant: str = ""
    adapter: str = ""
    pinned_tokens: Mapping[int, int] | None = None
    grammar: str = ""
    tool_names: ToolNames | None = None


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
    temperature = info.temperature if params.temperature is None else float(params.temperature)
    top_k = info.top_k if params.top_k is None else params.top_k
    seed = secrets.randbits(63) if params.seed in (None, RANDOM_SEED) else params.seed
    pinned_tokens = context.pinned_tokens
    is_infill = pinned_tokens is not None
    has_grammar = not is_infill and (params.structured_outputs is not None or bool(context.grammar))
    decoding = resolve_decoding(
        params, _with_grammar_algorithm(info, params) if has_grammar else info, len(ids), max_tokens, at("decoding")
    )
    positions = info.block_layout.of_request(decoding.values).total_len(len(ids), max_tokens)
    check_pages(positions, info, at("max_tokens"))
    tool_names = None
    if is_infill:
        decoding = _with_suppress_eos(decoding, params, "logits")
    elif has_grammar or context.tool_names is not None:
        ending = _with_suppress_eos(decoding, params, "none")  # the grammar determines the end
        tool_names = None if has_grammar else _tool_names(params, ending, info, at, context.tool_names)
        decoding = ending if has_grammar or tool_names is not None else decoding
    return RequestSpec(
        id=context.id,
        prompt=ids,
        max_tokens=max_tokens,
        temperature=0.0 if temperature < GREEDY_BELOW else temperature,
        top_p=info.top_p if params.top_p is None else float(params.top_p),
        top_k=min(max(top_k, 0), info.vocab_size),
        min_p=info.min_p if params.min_p is None else float(params.min_p),
        seed=seed % 2**64,
        ignore_eos=bool(params.ignore_eos) or is_infill,
        stop_ids=check_stop_ids(params.stop_token_ids, info, at("stop_token_ids")),
        logits_processors=resolve_logits_processors(params, max_tokens, decoding, info, at, is_infill=is_infill),
        max_nfe=params.max_nfe,
        max_repetition_run=params.max_repetition_run,
        decoding=decoding,
        logprobs=_logprobs(params, decoding, info, at("logprobs"), is_infill=is_infill),
        processed_logprobs=_processed_logprobs(params, at),
        stream_candidates=_stream_candidates(params, decoding, info, context.stream_mode, at("stream_candidates")),
        step_map=_step_map(params, decoding, info, at("return_step_map")),
        grammar=(grammar := _grammar(params, decoding, info, at, context.grammar, is_infill=is_infill)),
        structured=_structured_limits(params, info) if grammar else None,
        tool_names=tool_names,
        pinned_tokens=dict(pinned_tokens or {}),
        stream_mode=context.stream_mode,
        cache_salt=params.cache_salt or "",
        parent_id=context.parent_id,
        tenant=context.tenant,
        adapter=context.adapter or info.default_adapter,
    )


def _with_grammar_algorithm(info: EngineInfo, params: SamplingParams) -> EngineInfo:
    """Returns the engine with a default algorithm that supports grammars, if a request selects none and one exists."""
    selected = isinstance(params.decoding, Mapping) and (
        params.decoding.get("algorithm") or params.decoding.get("mode")
    )
    default = info.algorithm(info.default_algorithm)
    supporting = [algorithm.key for algorithm in info.algorithms if algorithm.supports_grammar]
    if selected or not supporting or (default is not None and default.supports_grammar):
        return info
    return msgspec.structs.replace(info, default_algorithm=supporting[0])


def _grammar(
    params: SamplingParams, decoding: DecodingParams, info: EngineInfo, at: At, grammar: str, *, is_infill: bool
) -> str:
    """Returns the grammar of the output, "" if it has none. Raises RequestError for incompatible fields."""
    if params.structured_outputs is None and not grammar:
        return ""
    name = at("structured_outputs")
    _check_grammar_support(params, decoding, info, at, is_infill=is_infill)
    return with_max_items(
        grammar or grammar_of(params.structured_outputs, name), _structured_limits(params, info).max_items
    )


def _tool_names(
    params: SamplingParams, decoding: DecodingParams, info: EngineInfo, at: At, names: ToolNames | None
) -> ToolNames | None:
    """Returns `names`, None if they cannot be constrained: the parser then only rejects calls of other names."""
    if names is None or info.buffer_size > 1:  # a name would change what later blocks depend on
        return None
    try:
        _check_grammar_support(params, decoding, info, at, is_infill=False)
    except RequestError:
        return None
    return names


def _check_grammar_support(
    params: SamplingParams, decoding: DecodingParams, info: EngineInfo, at: At, *, is_infill: bool
) -> None:
    """Raises RequestError for fields and engines that no grammar can be combined with."""
    name, path = at("structured_outputs"), at("decoding")
    if info.structured_output_error:
        raise refuse(name, f"is not supported by this server ({info.structured_output_error}); leave it out")
    if is_infill:
        raise refuse(name, "is not supported for infill; leave it out")
    algorithm = info.algorithm(decoding.algorithm)
    if algorithm is None or not algorithm.supports_grammar:
        supporting = [other.key for other in info.algorithms if other.supports_grammar]
        others = " or ".join(supporting) or "no algorithm of this server"
        raise refuse(
            name, f"is supported with {others}, not with {decoding.algorithm}; set {path}.algorithm, or leave it out"
        )
    if decoding.values.get("remask_threshold"):
        raise refuse(name, f"a remasked token may be one that the grammar needs; set {path}.remask_threshold to 0")
    if decoding.values.get(SUPPRESS_EOS, "none") != "none":
        raise refuse(
            name, f"cannot be combined with {path}.{SUPPRESS_EOS}: the grammar determines the end; leave that out"
        )
    if params.ignore_eos:
        raise refuse(
            name, f"cannot be combined with {at('ignore_eos')}: the grammar determines the end; leave that out"
        )
    if decoding.total_steps is not None:
        raise refuse(name, f"cannot be combined with {at('num_denoising_steps')}; leave that out")


def _structured_limits(params: SamplingParams, info: EngineInfo) -> StructuredLimits:
    named = {name: getattr(params, f"structured_{name}") for name in StructuredLimits.__struct_fields__}
    return msgspec.structs.replace(info.structured, **{name: each for name, each in named.items() if each is not None})


def _logprobs(
    params: SamplingParams, decoding: DecodingParams, info: EngineInfo, name: str, *, is_infill: bool
) -> int | None:
    """Returns `logprobs`. Raises RequestError if tokens have no fixed position."""
    if params.logprobs is None:
        return None
    if is_infill:
        raise refuse(name, "is not supported for infill; leave it out")
    _check_no_reordering(decoding, info, name)
    return params.logprobs


def _processed_logprobs(params: SamplingParams, at: At) -> bool:
    processed = params.logprobs_mode == "processed"
    if processed and params.logprobs is None:
        raise refuse(at("logprobs_mode"), "processed has no effect without logprobs; leave it out, or set them")
    return processed


def _stream_candidates(
    params: SamplingParams, decoding: DecodingParams, info: EngineInfo, mode: StreamMode, name: str
) -> int:
    """Returns `stream_candidates`. Raises RequestError without denoise events, or if tokens move."""
    if not params.stream_candidates:
        return 0
    if mode != "denoise":
        raise refuse(name, "is only for streams with stream_mode denoise; leave it out")
    _check_no_reordering(decoding, info, name)
    return params.stream_candidates


def _step_map(params: SamplingParams, decoding: DecodingParams, info: EngineInfo, name: str) -> BlockLayout | None:
    """Returns the blocks of the request if it asks for their steps. Raises RequestError if tokens move."""
    if not params.return_step_map:
        return None
    _check_no_reordering(decoding, info, name)
    layout = info.block_layout.of_request(decoding.values)
    return replace(layout, size=int(decoding.values.get(BLOCK_LENGTH, layout.size)))


def _check_no_reordering(decoding: DecodingParams, info: EngineInfo, param: str) -> None:
    """Raises RequestError for a field that needs tokens at fixed positions, if the algorithm moves them."""
    algorithm = info.algorithm(decoding.algorithm)
    if algorithm is not None and algorithm.reorders_tokens:
        why = f"is not supported with {algorithm.key}, which moves tokens to other positions; leave it out"
        raise refuse(param, why)


def _with_suppress_eos(decoding: DecodingParams, params: SamplingParams, value: str) -> DecodingParams:
    """Sets the field, if the algorithm has it and the request does not set it to another value than "none"."""
    set_by_request = params.decoding.get(SUPPRESS_EOS) if isinstance(params.decoding, Mapping) else None
    if SUPPRESS_EOS not in decoding.values or set_by_request not in (None, "none"):
        return decoding
    return msgspec.structs.replace(decoding, values=decoding.values | {SUPPRESS_EOS: value})


def expand_choices(spec: RequestSpec, n: int) -> list[RequestSpec]:
    """Returns the `n` requests of one prompt, which the first counts: ids ``id-i``, seeds seed + i.

    See docs/research/decoding-rules.md#random-numbers.
    """
    if n == 1:
        return [spec]
    return [
        msgspec.structs.replace(spec, id=f"{spec.id}-{i}", seed=(spec.seed + i) % 2**64, counts_prompt=i == 0)
        for i in range(n)
    ]


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
        why = f"has {len(ids)} tokens, and the model's length is {info.max_model_len}, the answer included; shorten it"
        raise refuse(param, why, code=TOO_LONG)


def check_ids(ids: Sequence[int], info: EngineInfo, param: str) -> None:
    """Raises RequestError for the first id that a prompt must not contain; the message has its index."""
    if not ids or (set(map(type, ids)) == {int} and min(ids) >= 0 and max(ids) <= info.max_token_id):
        return
    for i, token in enumerate(ids):
        if type(token) is not int:
            raise refuse(f"{param}[{i}]", f"{preview(token)} is not a token id (an integer)")
        if not 0 <= token <= info.max_token_id and token != info.mask_token_id:
            raise _not_a_token(f"{param}[{i}]", token, info)


def _not_a_token(param: str, value: object, info: EngineInfo) -> RequestError:
    return refuse(param, f"{preview(value)} is not a token id of this model (0 to {info.max_token_id})")


def _max_tokens(requested: int | None, length: int, info: EngineInfo, default: int | None, param: str) -> int:
    left = info.max_model_len - length
    if requested is None:
        default = info.default_max_tokens or default
        return left if default is None else min(default, left)
    if requested > info.max_model_len:
        why = f"{requested} is more than the model's length, {info.max_model_len}; lower it"
        raise refuse(param, why, code=TOO_LONG)
    return min(requested, left)  # no error: many clients send a round number, independent of the prompt


def check_pages(positions: int, info: EngineInfo, param: str) -> None:
    """Raises RequestError if the request needs more pages than the engine has."""
    pages = math.ceil(positions / info.page_size)
    if pages > info.num_pages:
        need = f"prompt and answer need {pages} cache pages of {info.page_size} tokens"
        raise refuse(param, f"{need} and the server has {info.num_pages}; ask for fewer tokens", code=TOO_LONG)


def score_spec(
    ids: Sequence[int], info: EngineInfo, context: RequestContext, *, param: str, prompt_len: int = 1,
    logprobs: int = 0, tokens_per_step: int = 1, cache_salt: str = "",
) -> RequestSpec:  # fmt: skip
    """Returns the request that scores the ids from `prompt_len` on, each conditioned on all ids before it.

    Args:
        ids: validated token ids.
        context: id, tenant and adapter of the request.
        param: field for error messages.
        logprobs: number of most probable tokens to return per token.
        tokens_per_step: scored tokens per forward pass.

    Raises:
        RequestError: the text is too long, or the engine cannot score.
    """
    if len(ids) > info.max_model_len:
        why = f"{len(ids)} tokens to score are more than the model's length, {info.max_model_len}; shorten them"
        raise refuse(param, why, code=TOO_LONG)
    algorithm = _scoring_algorithm(info, param)
    values = info.defaults(algorithm.key).values
    values |= {name: value for name, value in SCORING_VALUES.items() if name in values}
    return RequestSpec(
        id=context.id,
        prompt=list(ids[:prompt_len]),
        max_tokens=len(ids) - prompt_len,
        ignore_eos=True,
        decoding=DecodingParams(algorithm=algorithm.key, values=values),
        logprobs=logprobs,
        forced_token_ids=list(ids[prompt_len:]),
        forced_tokens_per_step=tokens_per_step,
        cache_salt=cache_salt,
        parent_id=context.parent_id,
        tenant=context.tenant,
        adapter=context.adapter or info.default_adapter,
    )


def _scoring_algorithm(info: EngineInfo, param: str) -> AlgorithmInfo:
    """Returns an algorithm that supports forced tokens."""
    if info.mask_token_id is None:
        raise refuse(param, "prompts cannot be scored by a model without a mask token; leave it out")
    for algorithm in info.algorithms:
        if algorithm.supports_grammar:
            return algorithm
    why = f"prompts cannot be scored with --decoding-strategy {info.strategy}, which revises all positions of a block"
    raise refuse(param, f"{why}; leave it out")

"""Parameters of a request besides its prompt: `SamplingParams`.

Each field is declared once, with its valid values, description and default. Validation, the schema of the routes
(``runtime.server.serving.generation``) and the table in docs/reference/request-fields.md
(``python -m tools.docs.request_fields``) come from the declaration. Algorithms and strategies declare the fields of
``decoding`` (``runtime.request.field_spec``).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runtime.request.field_spec import CANVAS_LENGTH, FULL_CANVAS, MIN_CANVAS_LENGTH, Kind, Limits
from runtime.request.validation import check_declared, refuse

MAX_STOPS, MAX_STOP_CHARS, MAX_CHOICES = 32, 1024, 128
MAX_STOP_IDS = 128
MAX_CACHE_SALT = 256  # characters
MAX_LOGPROBS = 20  # most probable tokens per position
MAX_COUNT = 2**31  # limit of all counts
UNKNOWN = "is not supported, because dlmserve does not document it; leave it out"

At = Callable[[str], str]  # maps a field to the name that the client used


@dataclass(frozen=True, kw_only=True)
class Parameter(Limits):
    """A field of `SamplingParams`.

    Attributes:
        name: name in requests.
        help: one line without a period.
        unset: text that describes the default; "": none.
        stands_for: the field of ``decoding`` that it is another name of, and which validates it.
        value_names: names of some of its values in that field.
        refused: why any value is rejected; "": it is supported.
        example: a value, for the documentation.
    """

    name: str
    help: str
    unset: str = ""
    stands_for: str = ""
    value_names: Mapping[str, str] = dataclasses.field(default_factory=dict)
    refused: str = ""
    example: object = None


def _parameter(kind: Kind, help: str, *, default: object = None, **declaration: Any) -> Any:
    """Declares a field of `SamplingParams`."""
    return dataclasses.field(default=default, metadata={"kind": kind, "help": help, **declaration})


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """Parameters of a request. ``None`` means the default of the server or the model.

    docs/reference/request-fields.md describes the fields. Those from `num_denoising_steps` on are names of dlmserve.
    """

    max_tokens: int | None = _parameter(
        "integer", "maximum number of output tokens", low=1, high=MAX_COUNT,
        unset="the rest of the context length; 512 on `/generate`; 256 with the strategy `full`",
        example=64,
    )  # fmt: skip
    temperature: float | None = _parameter(
        "number", "sampling temperature; 0: greedy", high=100,
        unset="that of the checkpoint, else 0 (with `diffusion_gemma` 1)", example=0.7,
    )  # fmt: skip
    top_p: float | None = _parameter(
        "number",
        "sample from the most probable tokens with this cumulative probability; 0: from the most probable token",
        high=1, unset="that of the checkpoint, else 1", example=0.9,
    )  # fmt: skip
    top_k: int | None = _parameter(
        "integer", "sample from this many most probable tokens; 0, -1: off", low=-1, high=MAX_COUNT,
        unset="that of the checkpoint, else 0", example=20,
    )  # fmt: skip
    min_p: float | None = _parameter(
        "number", "sample from tokens with at least this fraction of the highest probability", high=1,
        unset="that of the checkpoint, else 0", example=0.05,
    )  # fmt: skip
    seed: int | None = _parameter(
        "integer", "seed of sampling; output i of `n` has seed + i; -1: random", low=-(2**63), high=2**64 - 1,
        unset="random", example=1,
    )  # fmt: skip
    stop: str | Sequence[str] | None = _parameter(
        "texts", f"a text, or up to {MAX_STOPS}; the output ends before the first occurrence of one",
        high=MAX_STOP_CHARS, example=("\n\n",),
    )  # fmt: skip
    stop_token_ids: Sequence[int] | None = _parameter(
        "ids", "token ids that end the output, like the end-of-sequence token", high=MAX_STOP_IDS, example=[42]
    )
    min_tokens: int | None = _parameter(
        "integer", "minimum output tokens before an end-of-sequence token or stop token id", high=MAX_COUNT, unset="0",
        example=2,
    )  # fmt: skip
    logit_bias: Mapping[str | int, float] | None = _parameter(
        "object", "bias by token id, added to the logits: -100 to 100", example={"42": -100}
    )
    repetition_penalty: float | None = _parameter(
        "number", "divides positive logits of tokens in prompt or output, and multiplies negative ones",
        high=100, above_low=True, unset="1", example=1.1,
    )  # fmt: skip
    presence_penalty: float | None = _parameter(
        "number", "subtracted from the logits of tokens in the output", low=-2, high=2, unset="0", example=0.5
    )
    frequency_penalty: float | None = _parameter(
        "number", "subtracted once per occurrence in the output", low=-2, high=2, unset="0", example=0.5
    )
    ignore_eos: bool = _parameter(
        "flag", "continue to `max_tokens` after an end-of-sequence token", default=False, unset="`false`", example=False
    )
    max_nfe: int | None = _parameter("integer", "maximum denoising steps", low=1, high=MAX_COUNT, example=16)
    max_repetition_run: int | None = _parameter(
        "integer", "maximum consecutive repetitions of a token; a step that completes the output may exceed it",
        low=1, high=MAX_COUNT, example=8,
    )  # fmt: skip
    n: int = _parameter("integer", "outputs per prompt", default=1, low=1, high=MAX_CHOICES, unset="1", example=1)
    decoding: Mapping[str, Any] | None = _parameter(
        "object", "fields of the unmasking algorithm and the strategy", example={"mode": "balanced"}
    )
    structured_outputs: Mapping[str, Any] | None = _parameter(
        "object", "format of the output: one of `json` (a schema), `json_object` (`true`), `regex`, `choice` "
        "(a list of texts), `grammar`", example={"regex": "[a-z]+"},
    )  # fmt: skip
    structured_complete: bool | None = _parameter(
        "flag", "structured output ends in its format before `max_tokens`; `false`: it may be cut",
        unset="that of the server, `true`", example=True,
    )  # fmt: skip
    structured_max_length: int | None = _parameter(
        "integer", "maximum characters of a JSON string whose schema has no maximum; 0: any number",
        high=MAX_COUNT, unset="that of the server, 32768", example=1000,
    )  # fmt: skip
    structured_max_items: int | None = _parameter(
        "integer", "maximum items of a JSON array whose schema has no maximum; 0: any number",
        high=MAX_COUNT, unset="that of the server, 1024", example=50,
    )  # fmt: skip
    structured_max_run: int | None = _parameter(
        "integer", "maximum tokens of structured output that repeat the 1 to 8 tokens before them; 0: any number",
        high=MAX_COUNT, unset="that of the server, 256", example=64,
    )  # fmt: skip
    logprobs: int | None = _parameter(
        "integer", "return logprobs: of each token, and of this many most probable tokens at its position",
        high=MAX_LOGPROBS, example=1,
    )  # fmt: skip
    logprobs_mode: str | None = _parameter(
        "choice", "`raw`: logprobs of the model; `processed`: of the distribution that tokens are drawn from",
        choices=("raw", "processed"), unset="`raw`", example="raw",
    )  # fmt: skip
    stream_candidates: int | None = _parameter(
        "integer", "`denoise` events have this many most probable tokens of each masked position, with probabilities",
        high=MAX_LOGPROBS, unset="0", example=2,
    )  # fmt: skip
    return_step_map: bool = _parameter(
        "flag", "return the denoising step that wrote each token", default=False, unset="`false`", example=True
    )
    cache_salt: str | None = _parameter(
        "text", "cached prefixes are only shared between requests with the same salt", high=MAX_CACHE_SALT,
        unset="the empty text", example="team-a",
    )  # fmt: skip
    num_denoising_steps: int | None = _parameter(
        "integer", "steps of all blocks of the output, divided evenly", low=1, high=MAX_COUNT, example=16
    )
    block_length: int | None = _parameter("integer", "tokens per block", stands_for="block_length", example=32)
    diffusion_max_canvas_length: int | None = _parameter(
        "integer", "maximum positions of a canvas", stands_for=CANVAS_LENGTH, example=64
    )
    diffusion_min_canvas_length: int | None = _parameter(
        "integer", "minimum positions of a canvas", stands_for=MIN_CANVAS_LENGTH, example=64
    )
    diffusion_full_canvas: bool | None = _parameter(
        "flag", "all canvases have the maximum length", stands_for=FULL_CANVAS, example=True
    )
    use_local_leap: bool | None = _parameter("flag", "the algorithm is `local_leap`", unset="`false`", example=False)
    local_leap_anchor_threshold: float | None = _parameter(
        "number", "confidence of anchors", stands_for="local_leap.anchor", example=0.9
    )
    local_leap_neighbor_threshold: float | None = _parameter(
        "number", "confidence of positions near anchors", stands_for="local_leap.neighbor", example=0.6
    )
    local_leap_radius: int | None = _parameter(
        "integer", "maximum distance to an anchor", stands_for="local_leap.radius", example=4
    )
    confidence_metric: str | None = _parameter(
        "text", "order of positions; also `top1_prob` and `entropy_inverse`", stands_for="confidence_metric",
        value_names={"top1_prob": "max_prob", "entropy_inverse": "neg_entropy"}, example="margin",
    )  # fmt: skip
    force_single_batch: bool | None = _parameter(
        "flag", "no other request shares the forward passes", stands_for="force_single_batch", example=False
    )
    block_schedule: str | None = _parameter("text", "", refused=UNKNOWN)
    target_length: int | None = _parameter("integer", "", refused=UNKNOWN)


PARAMETERS = tuple(Parameter(name=field.name, **field.metadata) for field in dataclasses.fields(SamplingParams))


_CHECKED = {field.name: field for field in PARAMETERS if not field.stands_for and field.kind != "object"}


def check_fields(params: SamplingParams, at: At = str) -> None:
    """Validates all fields by their declarations, except for other names of fields of ``decoding``.

    Args:
        at: maps a field to the name that the client used.

    Raises:
        RequestError: a field is invalid.
    """
    for name, value in vars(params).items():  # in the order of their declarations
        if value is None or (field := _CHECKED.get(name)) is None:
            continue
        param = at(name)
        if field.refused:
            raise refuse(param, field.refused)
        if field.kind == "texts":
            stop_strings(value, param)
        elif field.kind == "ids":
            id_list(value, param, int(field.high or MAX_COUNT))
        else:
            check_declared(param, value, field)


def id_list(ids: object, param: str, max_len: int) -> list[int]:
    """Returns a list of integers of at most `max_len` entries. It does not check that they are token ids of a model."""
    if not isinstance(ids, list | tuple) or any(type(token) is not int for token in ids):
        raise refuse(param, "must be a list of token ids")
    if len(ids) > max_len:
        raise refuse(param, f"has {len(ids)} ids; at most {max_len}")
    return list(ids)


def stop_strings(stop: object, param: str = "stop") -> tuple[str, ...]:
    """Returns the stop strings as a tuple without duplicates."""
    if stop is None or stop == "":  # some clients send "" for none
        return ()
    items = [stop] if isinstance(stop, str) else stop
    if not isinstance(items, list | tuple) or not all(isinstance(s, str) for s in items):
        raise refuse(param, "must be a string or a list of strings")
    if any(not s for s in items):
        raise refuse(param, "an empty string would stop at once; leave it out")
    if len(items) > MAX_STOPS or any(len(s) > MAX_STOP_CHARS for s in items):
        raise refuse(param, f"at most {MAX_STOPS} strings of {MAX_STOP_CHARS} characters")
    return tuple(dict.fromkeys(items))

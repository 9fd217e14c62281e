"""Parameters of a request besides its prompt: `SamplingParams`.

Each field is declared once, with its valid values, description and default. Validation, the schema of the routes
(``runtime.server.schemas``) and the table in docs/server.md (``python -m tools.docs.request_fields``) are derived from
the declaration. Algorithms and strategies declare the fields of ``decoding`` (``runtime.request.field_spec``).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runtime.request.field_spec import Kind, Limits
from runtime.request.validation import check_declared, refuse

MAX_STOPS, MAX_STOP_CHARS, MAX_CHOICES = 32, 1024, 128
MAX_STOP_IDS = 128
MAX_LOGPROBS = 20  # most probable tokens per position
MAX_COUNT = 2**31  # limit of all counts
UNKNOWN = "means nothing here, as dlmserve does not say what it does; leave it out"

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

    docs/server.md#fields-of-a-request describes the fields. Those from `num_denoising_steps` on are names of dlmserve.
    """

    max_tokens: int | None = _parameter(
        "integer", "most tokens of the answer", low=1, high=MAX_COUNT,
        unset="what the model's length leaves; on `/generate` 512, with the strategy `full` 256 everywhere",
        example=64,
    )  # fmt: skip
    temperature: float | None = _parameter(
        "number", "0: the likeliest token; above it tokens are drawn", high=100,
        unset="the checkpoint's, else 0 (with `diffusion_gemma` 1)", example=0.7,
    )  # fmt: skip
    top_p: float | None = _parameter(
        "number", "draw from the likeliest tokens that together have this probability", high=1, above_low=True,
        unset="the checkpoint's, else 1", example=0.9,
    )  # fmt: skip
    top_k: int | None = _parameter(
        "integer", "draw from so many of the likeliest tokens; 0, -1: off", low=-1, high=MAX_COUNT,
        unset="the checkpoint's, else 0", example=20,
    )  # fmt: skip
    min_p: float | None = _parameter(
        "number", "draw from tokens of at least this share of the likeliest one's probability", high=1, unset="0",
        example=0.05,
    )  # fmt: skip
    seed: int | None = _parameter(
        "integer", "of what is drawn; answer i of `n` has seed + i", low=-(2**63), high=2**64 - 1, unset="random",
        example=1,
    )  # fmt: skip
    stop: str | Sequence[str] | None = _parameter(
        "texts", f"a text, or up to {MAX_STOPS}; the answer ends before the first that appears", high=MAX_STOP_CHARS,
        example=("\n\n",),
    )  # fmt: skip
    stop_token_ids: Sequence[int] | None = _parameter(
        "ids", "ids that end the answer as an end of sequence does", high=MAX_STOP_IDS, example=[42]
    )
    min_tokens: int | None = _parameter(
        "integer",
        "no end of sequence, nor a stop token id, before so many tokens",
        high=MAX_COUNT,
        unset="0",
        example=2,
    )
    logit_bias: Mapping[str | int, float] | None = _parameter(
        "object", "what is added to the logits of token ids, by the id: -100 to 100 each", example={"42": -100}
    )
    repetition_penalty: float | None = _parameter(
        "number", "divides positive logits of tokens that prompt or answer hold, and multiplies negative ones",
        high=100, above_low=True, unset="1", example=1.1,
    )  # fmt: skip
    presence_penalty: float | None = _parameter(
        "number", "taken from the logits of tokens that the answer holds", low=-2, high=2, unset="0", example=0.5
    )
    frequency_penalty: float | None = _parameter(
        "number", "the same as often as the answer holds them", low=-2, high=2, unset="0", example=0.5
    )
    ignore_eos: bool = _parameter(
        "flag", "go on to `max_tokens` whatever the model says", default=False, unset="`false`", example=False
    )
    max_nfe: int | None = _parameter("integer", "most denoising steps", low=1, high=MAX_COUNT, example=16)
    max_repetition_run: int | None = _parameter(
        "integer", "most repetitions of a token in a row", low=1, high=MAX_COUNT, example=8
    )
    n: int = _parameter("integer", "answers to each prompt", default=1, low=1, high=MAX_CHOICES, unset="1", example=1)
    decoding: Mapping[str, Any] | None = _parameter("object", "how blocks are denoised", example={"mode": "balanced"})
    structured_outputs: Mapping[str, Any] | None = _parameter(
        "object", "what the answer has to be: one of `json` (a schema), `json_object` (`true`), `regex`, `choice` "
        "(a list of texts), `grammar`", example={"regex": "[a-z]+"},
    )  # fmt: skip
    logprobs: int | None = _parameter(
        "integer", "tell log-probabilities: each token's, and of so many of the likeliest in its place",
        high=MAX_LOGPROBS, example=1,
    )  # fmt: skip
    cache_salt: str | None = _parameter(
        "text", "cached prefixes are shared with requests of the same salt alone", high=256, unset="the empty text",
        example="team-a",
    )  # fmt: skip
    num_denoising_steps: int | None = _parameter(
        "integer", "steps over all blocks of the answer, shared out evenly", low=1, high=MAX_COUNT, example=16
    )
    block_length: int | None = _parameter("integer", "tokens of a block", stands_for="block_length", example=32)
    use_local_leap: bool | None = _parameter("flag", "the algorithm is `local_leap`", unset="`false`", example=False)
    local_leap_anchor_threshold: float | None = _parameter(
        "number", "what makes anchors", stands_for="local_leap.anchor", example=0.9
    )
    local_leap_neighbor_threshold: float | None = _parameter(
        "number", "what is taken near them", stands_for="local_leap.neighbor", example=0.6
    )
    local_leap_radius: int | None = _parameter("integer", "how near that is", stands_for="local_leap.radius", example=4)
    confidence_metric: str | None = _parameter(
        "text", "what orders positions; also `top1_prob` and `entropy_inverse`", stands_for="confidence_metric",
        value_names={"top1_prob": "max_prob", "entropy_inverse": "neg_entropy"}, example="margin",
    )  # fmt: skip
    force_single_batch: bool | None = _parameter(
        "flag", "forwards that no other request shares", stands_for="force_single_batch", example=False
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
        if field.refused:
            raise refuse(at(field.name), field.refused)
        if field.kind == "texts":
            stop_strings(value, at(field.name))
        elif field.kind == "ids":
            id_list(value, at(field.name), int(field.high or MAX_COUNT))
        else:
            check_declared(at(field.name), value, field)


def id_list(ids: object, param: str, max_len: int) -> list[int]:
    """Returns a list of integers of at most `max_len` entries. It does not check that they are token ids of a model."""
    if not isinstance(ids, list | tuple) or any(type(token) is not int for token in ids):
        raise refuse(param, "must be a list of token ids")
    if len(ids) > max_len:
        raise refuse(param, f"has {len(ids)} ids; at most {max_len}")
    return list(ids)


def stop_strings(stop: object, param: str = "stop") -> tuple[str, ...]:
    """Returns the stop strings as a tuple without duplicates."""
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

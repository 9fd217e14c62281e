"""What a request may ask for beside its prompt, each field declared once: `SamplingParams`, as users write them.

A field's declaration says which values it takes, what it is for, and what stands where it is left out. Its check comes
from there, the routes' schema (``runtime.server.schemas``) and the table in docs/server.md (``python -m
tools.docs.request_fields``). What may stand under ``decoding``, rules and strategies declare
(``runtime.request.field_spec``).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runtime.request.field_spec import Kind, Limits
from runtime.request.validation import declared, refuse

MAX_STOPS, MAX_STOP_CHARS, MAX_CHOICES = 32, 1024, 128
MAX_STOP_IDS = 128
MOST_TOLD = 20  # tokens beside the one that stands there
MANY = 2**31  # no count is larger
UNKNOWN = "means nothing here, as dlmserve does not say what it does; leave it out"

At = Callable[[str], str]  # how the client spelt a field


@dataclass(frozen=True, kw_only=True)
class Parameter(Limits):
    """One field of `SamplingParams`.

    Attributes:
        name: as requests spell it.
        help: one line without a full stop.
        unset: in words, what stands where it is left out; "" where nothing does.
        stands_for: the field under ``decoding`` that it is another name of, and that says which values it takes.
        words: what some of its values are called there.
        refused: why it is refused, whatever its value.
        example: a value, for the documentation.
    """

    name: str
    help: str
    unset: str = ""
    stands_for: str = ""
    words: Mapping[str, str] = dataclasses.field(default_factory=dict)
    refused: str = ""
    example: object = None


def _asked(kind: Kind, help: str, *, default: object = None, **declaration: Any) -> Any:
    """A field of the class below, and its declaration; left out, it is `default`."""
    return dataclasses.field(default=default, metadata={"kind": kind, "help": help, **declaration})


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """Parameters of a request. ``None`` means the default of the server or the model.

    docs/server.md#fields-of-a-request describes the fields. Those from `num_denoising_steps` on are names of dlmserve.
    """

    max_tokens: int | None = _asked(
        "integer", "most tokens of the answer", low=1, high=MANY,
        unset="what the model's length leaves; on `/generate` 512, with the strategy `full` 256 everywhere",
        example=64,
    )  # fmt: skip
    temperature: float | None = _asked(
        "number", "0: the likeliest token; above it tokens are drawn", high=100,
        unset="the checkpoint's, else 0 (with `diffusion_gemma` 1)", example=0.7,
    )  # fmt: skip
    top_p: float | None = _asked(
        "number", "draw from the likeliest tokens that together have this probability", high=1, above_low=True,
        unset="the checkpoint's, else 1", example=0.9,
    )  # fmt: skip
    top_k: int | None = _asked(
        "integer", "draw from so many of the likeliest tokens; 0, -1: off", low=-1, high=MANY,
        unset="the checkpoint's, else 0", example=20,
    )  # fmt: skip
    min_p: float | None = _asked(
        "number", "draw from tokens of at least this share of the likeliest one's probability", high=1, unset="0",
        example=0.05,
    )  # fmt: skip
    seed: int | None = _asked(
        "integer", "of what is drawn; answer i of `n` has seed + i", low=-(2**63), high=2**64 - 1, unset="random",
        example=1,
    )  # fmt: skip
    stop: str | Sequence[str] | None = _asked(
        "texts", f"a text, or up to {MAX_STOPS}; the answer ends before the first that appears", high=MAX_STOP_CHARS,
        example=("\n\n",),
    )  # fmt: skip
    stop_token_ids: Sequence[int] | None = _asked(
        "ids", "ids that end the answer as an end of sequence does", high=MAX_STOP_IDS, example=[42]
    )
    min_tokens: int | None = _asked(
        "integer", "no end of sequence, nor a stop token id, before so many tokens", high=MANY, unset="0", example=2
    )
    logit_bias: Mapping[str | int, float] | None = _asked(
        "object", "what is added to the logits of token ids, by the id: -100 to 100 each", example={"42": -100}
    )
    repetition_penalty: float | None = _asked(
        "number", "divides positive logits of tokens that prompt or answer hold, and multiplies negative ones",
        high=100, above_low=True, unset="1", example=1.1,
    )  # fmt: skip
    presence_penalty: float | None = _asked(
        "number", "taken from the logits of tokens that the answer holds", low=-2, high=2, unset="0", example=0.5
    )
    frequency_penalty: float | None = _asked(
        "number", "the same as often as the answer holds them", low=-2, high=2, unset="0", example=0.5
    )
    ignore_eos: bool = _asked(
        "flag", "go on to `max_tokens` whatever the model says", default=False, unset="`false`", example=False
    )
    max_nfe: int | None = _asked("integer", "most denoising steps", low=1, high=MANY, example=16)
    max_repetition_run: int | None = _asked(
        "integer", "most repetitions of a token in a row", low=1, high=MANY, example=8
    )
    n: int = _asked("integer", "answers to each prompt", default=1, low=1, high=MAX_CHOICES, unset="1", example=1)
    decoding: Mapping[str, Any] | None = _asked("object", "how blocks are denoised", example={"mode": "balanced"})
    structured_outputs: Mapping[str, Any] | None = _asked(
        "object", "what the answer has to be: one of `json` (a schema), `json_object` (`true`), `regex`, `choice` "
        "(a list of texts), `grammar`", example={"regex": "[a-z]+"},
    )  # fmt: skip
    logprobs: int | None = _asked(
        "integer", "tell log-probabilities: each token's, and of so many of the likeliest in its place", high=MOST_TOLD,
        example=1,
    )  # fmt: skip
    cache_salt: str | None = _asked(
        "text", "cached prefixes are shared with requests of the same salt alone", high=256, unset="the empty text",
        example="team-a",
    )  # fmt: skip
    num_denoising_steps: int | None = _asked(
        "integer", "steps over all blocks of the answer, shared out evenly", low=1, high=MANY, example=16
    )
    block_length: int | None = _asked("integer", "tokens of a block", stands_for="block_length", example=32)
    use_local_leap: bool | None = _asked("flag", "the algorithm is `local_leap`", unset="`false`", example=False)
    local_leap_anchor_threshold: float | None = _asked(
        "number", "what makes anchors", stands_for="local_leap.anchor", example=0.9
    )
    local_leap_neighbor_threshold: float | None = _asked(
        "number", "what is taken near them", stands_for="local_leap.neighbor", example=0.6
    )
    local_leap_radius: int | None = _asked("integer", "how near that is", stands_for="local_leap.radius", example=4)
    confidence_metric: str | None = _asked(
        "text", "what orders positions; also `top1_prob` and `entropy_inverse`", stands_for="confidence_metric",
        words={"top1_prob": "max_prob", "entropy_inverse": "neg_entropy"}, example="margin",
    )  # fmt: skip
    force_single_batch: bool | None = _asked(
        "flag", "forwards that no other request shares", stands_for="force_single_batch", example=False
    )
    block_schedule: str | None = _asked("text", "", refused=UNKNOWN)
    target_length: int | None = _asked("integer", "", refused=UNKNOWN)


PARAMETERS = tuple(Parameter(name=field.name, **field.metadata) for field in dataclasses.fields(SamplingParams))


_CHECKED = {field.name: field for field in PARAMETERS if not field.stands_for and field.kind != "object"}


def check_fields(params: SamplingParams, at: At = str) -> None:
    """Every field by its declaration; what is another name of a field under ``decoding`` is checked with those.

    Raises RequestError naming the first that is wrong, as `at` spells it.
    """
    for name, value in vars(params).items():  # in the order of their declarations
        if value is None or (field := _CHECKED.get(name)) is None:
            continue
        if field.refused:
            raise refuse(at(field.name), field.refused)
        if field.kind == "texts":
            stop_strings(value, at(field.name))
        elif field.kind == "ids":
            id_list(value, at(field.name), int(field.high or MANY))
        else:
            declared(at(field.name), value, field)


def id_list(ids: object, param: str, most: int) -> list[int]:
    """Integers; whether a model has them is another matter."""
    if not isinstance(ids, list | tuple) or any(type(token) is not int for token in ids):
        raise refuse(param, "must be a list of token ids")
    if len(ids) > most:
        raise refuse(param, f"has {len(ids)} ids; at most {most}")
    return list(ids)


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

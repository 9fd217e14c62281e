"""Models of llama.cpp's infill API: requests, responses and events."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field
from typing_extensions import TypedDict

from runtime.server.serving import generation
from runtime.server.serving.request_body import (
    Integer,
    Number,
    RequestModel,
    UnsupportedField,
    api_field,
    ignored_field,
    optional,
)

MAX_SNIPPETS = 256


class Snippet(RequestModel):
    text: str = api_field("text of another place", "def add(a, b):\n    return a + b\n")
    filename: str | None = optional("file of the text", "sums.py")
    time: Any = ignored_field(0)


class LlamaInfillRequest(generation.SingleChoiceRequest):
    input_prefix: str = api_field("lines before the line of the cursor", "def add(a, b):\n")
    input_suffix: str = api_field("text after the cursor", "\n\nprint(add(1, 2))\n")
    prompt: str | None = optional("text between `input_prefix` and the cursor", "    return ")
    input_extra: Annotated[list[Snippet], Field(max_length=MAX_SNIPPETS, fail_fast=True)] | None = optional(
        "texts of other places, for context", [{"filename": "sums.py", "text": "def add(a, b):\n"}]
    )
    n_predict: Integer | None = optional(
        "maximum number of tokens; -1: the default; 0: only fills the prefix cache", 32, ge=-1
    )
    repeat_penalty: Number | None = optional("alias of `repetition_penalty`", 1)
    return_tokens: bool | None = optional("return the token ids in `tokens`", True)
    response_fields: list[str] | None = optional(
        "return only these fields, under these names; a slash separates levels", ["content", "timings/predicted_n"]
    )
    cache_prompt: bool | None = optional("ignored; prefixes are always cached", True)
    samplers: Any = ignored_field(["top_k", "top_p", "infill"])
    n_indent: Integer | None = optional("above 0: ignored and named in `X-Unmask-Ignored`", 0)
    n_keep: Integer | None = ignored_field(0)
    id_slot: Integer | None = ignored_field(-1)
    t_max_prompt_ms: Number | None = ignored_field(500)
    t_max_predict_ms: Number | None = optional("above 0: ignored and named in `X-Unmask-Ignored`", -1)
    timings_per_token: bool | None = ignored_field(False)
    n_cmpl: Annotated[Any, UnsupportedField(1)] = None
    n_probs: Annotated[Any, UnsupportedField(0)] = None
    lora: Annotated[Any, UnsupportedField([])] = None
    grammar: Annotated[Any, UnsupportedField("")] = None
    mirostat: Annotated[Any, UnsupportedField(0)] = None
    typical_p: Annotated[Any, UnsupportedField(1)] = None
    dynatemp_range: Annotated[Any, UnsupportedField(0)] = None
    dry_multiplier: Annotated[Any, UnsupportedField(0)] = None
    xtc_probability: Annotated[Any, UnsupportedField(0)] = None

    stream_fields: ClassVar[tuple[str, ...]] = ()

    def ignored_paths(self) -> Iterator[str]:
        yield from super().ignored_paths()
        for name in ("n_indent", "t_max_predict_ms"):  # they would end the output earlier
            if (getattr(self, name) or 0) > 0:
                yield name

    def names(self) -> dict[str, str]:
        return {
            "prompt": "input_prefix",
            **({} if self.n_predict is None else {"max_tokens": "n_predict"}),
            **({} if self.repeat_penalty is None else {"repetition_penalty": "repeat_penalty"}),
        }

    def set_fields(self) -> dict[str, Any]:
        """Returns set fields, with those of llama.cpp under the names of `SamplingParams`. Raises RequestError."""
        found = super().set_fields()
        generation.set_alias(found, "n_predict", self.n_predict, "max_tokens")
        generation.set_alias(found, "repeat_penalty", self.repeat_penalty, "repetition_penalty")
        return found


class LlamaTimings(TypedDict):
    cache_n: Annotated[int, api_field("prompt tokens found in the prefix cache")]
    prompt_n: Annotated[int, api_field("prompt tokens that were computed")]
    prompt_ms: Annotated[float, api_field("milliseconds for these")]
    prompt_per_token_ms: Annotated[float, api_field("milliseconds per token; 0 without any")]
    prompt_per_second: Annotated[float, api_field("tokens per second; 0 without any")]
    predicted_n: Annotated[int, api_field("output tokens")]
    predicted_ms: Annotated[float, api_field("milliseconds for these")]
    predicted_per_token_ms: Annotated[float, api_field("milliseconds per token; 0 without any")]
    predicted_per_second: Annotated[float, api_field("tokens per second; 0 without any")]


class _Output(TypedDict, total=False):
    index: Literal[0]
    tokens_predicted: Annotated[int, api_field("output tokens so far")]
    tokens_evaluated: Annotated[int, api_field("prompt tokens, including the text after the cursor")]


class LlamaEvent(_Output):
    """An event before the last one."""

    content: Annotated[str, api_field("new text")]
    tokens: Annotated[list[int], api_field("always empty; the last event has the token ids, if requested")]
    stop: Literal[False]


class LlamaInfillAnswer(_Output, total=False):
    """The answer of `/infill`, and the last event of a stream. With `response_fields` it has only these fields."""

    content: Annotated[str, api_field("text for the place of the cursor; empty in a stream")]
    tokens: Annotated[list[int], api_field("token ids of the text, if requested")]
    stop: Literal[True]
    id: Annotated[str, api_field("id of this request")]
    model: Annotated[str, api_field("requested model name")]
    has_new_line: Annotated[bool, api_field("whether the text has several lines")]
    truncated: Annotated[bool, api_field("whether texts were cut because they are too long")]
    stop_type: Annotated[
        Literal["eos", "limit", "word"], api_field("end of sequence, the number of tokens, or a stop string")
    ]
    stopping_word: Annotated[str, api_field("stop string that ended the text; empty if none did")]
    tokens_cached: Annotated[int, api_field("prompt tokens found in the prefix cache")]
    timings: Annotated[LlamaTimings, api_field("times and speeds")]

"""Models of Mistral's fill-in-the-middle API: requests, responses and chunks."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, NotRequired

from typing_extensions import TypedDict

from runtime.server.serving import generation
from runtime.server.serving.request_body import Identifier, Integer, api_field, ignored_field, optional


class FimRequest(generation.SingleChoiceRequest):
    prompt: str = api_field("text before the cursor", "def add(a, b):\n    return ")
    suffix: str | None = optional("text after the cursor", "\n\nprint(add(1, 2))\n")
    random_seed: Integer | None = optional("alias of `seed`", 7)
    metadata: generation.Entries | None = ignored_field({"topic": "sums"})
    prompt_cache_key: Identifier | None = optional("ignored; prefixes are cached without it", "editor")

    stream_fields: ClassVar[tuple[str, ...]] = ()

    def names(self) -> dict[str, str]:
        return {} if self.random_seed is None else {"seed": "random_seed"}

    def set_fields(self) -> dict[str, Any]:
        """Returns set fields, with `random_seed` as `seed`. Raises RequestError."""
        found = super().set_fields()
        generation.set_alias(found, "random_seed", self.random_seed, "seed")
        return found


Reason = Annotated[
    Literal["stop", "length"], api_field("`stop`: end of sequence or a stop string; `length`: the number of tokens")
]


class FimHead(TypedDict):
    """Fields of all responses."""

    id: Annotated[str, api_field("id of this request")]
    created: Annotated[int, api_field("creation time, Unix seconds")]
    model: Annotated[str, api_field("requested model name")]


class FimMessage(TypedDict):
    role: Literal["assistant"]
    content: Annotated[str, api_field("text for the place of the cursor")]
    tool_calls: None


class FimChoice(TypedDict):
    index: Literal[0]
    message: Annotated[FimMessage, api_field("generated text")]
    finish_reason: Reason


class FimAnswer(FimHead):
    """The answer of `/v1/fim/completions`."""

    object: Literal["chat.completion"]
    choices: Annotated[list[FimChoice], api_field("one completion")]
    usage: Annotated[generation.Usage, api_field("token counts")]


class FimDelta(TypedDict):
    role: Annotated[NotRequired[Literal["assistant"]], api_field("role, in the first chunk")]
    content: Annotated[str, api_field("new text")]


class FimChunkChoice(TypedDict):
    index: Literal[0]
    delta: Annotated[FimDelta, api_field("new part")]
    finish_reason: Annotated[Literal["stop", "length"] | None, api_field("reason for the end; null before")]


class FimChunk(FimHead):
    """An event of a stream."""

    object: Literal["chat.completion.chunk"]
    choices: Annotated[list[FimChunkChoice], api_field("one completion")]
    usage: Annotated[NotRequired[generation.Usage], api_field("token counts, in the last chunk")]

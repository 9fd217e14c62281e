"""Models of ``/generate`` and ``/v1/infill``: requests, responses and events."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError
from typing_extensions import TypedDict

from runtime.server.http_protocol.error_responses import ErrorResponse
from runtime.server.serving import chat, generation
from runtime.server.serving.request_body import Integer, RequestModel, UnsupportedField, api_field, optional

MAX_SEGMENTS = 1024


class GenerateRequest(generation.StepMapRequest, chat.ChatFields):
    """Either a prompt, continued as it is, or the messages of a chat."""

    prompt: generation.Prompt | None = optional("prompt to continue: text or token ids", "Solve: 12 + 30.")
    parse_special: generation.ParseSpecial = None
    n: Annotated[Any, UnsupportedField(1)] = None
    stream_mode: Literal["denoise", "block_append"] | None = optional(
        "events of a stream: `denoise`, the open blocks after each step; `block_append`, appended text", "denoise"
    )

    default_stream_mode = "denoise"

    def names(self) -> dict[str, str]:
        return super().names() | ({} if self.messages is None else {"prompt": "messages"})


class Segment(RequestModel):
    """A piece of a text with holes: a text that stays, or a hole."""

    text: str | None = optional("fixed text", "The sky is ")
    mask: Integer | None = optional("length of a gap in tokens", 8)

    @model_validator(mode="after")
    def _is_one(self) -> Segment:
        if (self.text is None) == (self.mask is None):
            raise PydanticCustomError("one_of", "give it either text or mask, a hole's tokens")
        return self


class InfillRequest(generation.GenerationRequest):
    text: str | None = optional("text with gaps: `<mask:8>` is a gap of eight tokens", "2, 4, <mask:2>8, 10")
    segments: Annotated[list[Segment], Field(max_length=MAX_SEGMENTS, fail_fast=True)] | None = optional(
        "sequence of texts and gaps, instead of `text`", [{"text": "2, 4, "}, {"mask": 2}, {"text": "8, 10"}]
    )
    messages: chat.Messages | None = optional(
        "messages of a chat; the text is the assistant's response", chat.EXAMPLE_CHAT
    )
    chat_template_kwargs: generation.TemplateArguments = None
    n: Annotated[Any, UnsupportedField(1)] = None
    stream_mode: Literal["denoise"] | None = optional("events of a stream: the open blocks after each step", "denoise")

    default_stream_mode = "denoise"

    def names(self) -> dict[str, str]:
        return {"prompt": "text" if self.segments is None else "segments"}


FinishReason = Literal["stop", "length", "max_nfe", "repetition"]


class OwnTopLogprob(TypedDict):
    id: Annotated[int, api_field("id of the token")]
    token: Annotated[str, api_field("text of the token; `bytes:` and escapes for incomplete characters")]
    logprob: Annotated[float, api_field("log-probability (natural logarithm)")]


class OwnLogprob(OwnTopLogprob):
    """One of `token_ids`."""

    top_logprobs: Annotated[list[OwnTopLogprob], generation.TOP_LOGPROBS]


_NewLogprobs = Annotated[list[OwnLogprob], api_field("log-probabilities of the tokens of this text, if requested")]


class _Answer(TypedDict):
    id: Annotated[str, api_field("id of this request")]
    nfe: Annotated[int, api_field("denoising steps of all blocks")]
    usage: Annotated[generation.Usage, api_field("token counts")]
    timings: Annotated[generation.Timings, api_field("seconds")]


class MetaInfo(TypedDict):
    """Fields that SGLang has in its `meta_info`."""

    step_maps: Annotated[
        list[int], api_field("`step_map` by SGLang's count: the steps of each block, from 1, that unmasked a position")
    ]


class GenerateAnswer(_Answer, generation.StepFields, generation.PromptWarned):
    """The answer of `/generate`."""

    text: Annotated[str, api_field("output without end-of-sequence tokens and stop strings")]
    token_ids: Annotated[list[int], api_field("token ids of the output")]
    finish_reason: Annotated[FinishReason, api_field("`stop`: end of sequence or a stop string; otherwise the limit")]
    logprobs: Annotated[NotRequired[list[OwnLogprob]], api_field("log-probabilities of `token_ids`, if requested")]
    meta_info: Annotated[NotRequired[MetaInfo], api_field("with `return_step_maps`")]
    full_text: Annotated[str, api_field("prompt and output")]
    full_token_ids: Annotated[list[int], api_field("token ids of prompt and output")]


class GenerateFinal(GenerateAnswer):
    """The last event of a stream: the whole answer."""

    event: Literal["final"]


class DenoiseEvent(generation.DenoiseStep):
    """A step, with `stream_mode` `denoise`."""

    event: Literal["denoise"]
    id: Annotated[str, api_field("id of this request")]
    text: Annotated[str, api_field("text that became final; the output is the concatenation")]
    logprobs: NotRequired[_NewLogprobs]


class AppendEvent(TypedDict):
    """More text, with `stream_mode` `block_append`."""

    event: Literal["block_append"]
    id: Annotated[str, api_field("id of this request")]
    text: Annotated[str, api_field("appended text")]
    nfe: Annotated[int, api_field("denoising steps so far")]
    logprobs: NotRequired[_NewLogprobs]


class ErrorEvent(ErrorResponse):
    """In place of the rest of a stream."""

    event: Literal["error"]
    id: Annotated[str, api_field("id of this request")]


class FilledHole(TypedDict):
    text: Annotated[str, api_field("text of the gap")]
    token_ids: Annotated[list[int], api_field("token ids of the gap")]


class InfillAnswer(_Answer):
    """The answer of `/v1/infill`."""

    object: Literal["infill"]
    model: Annotated[str, api_field("requested model name")]
    text: Annotated[str, api_field("text with filled gaps")]
    holes: Annotated[list[FilledHole], api_field("gaps in order")]


class InfillFinal(InfillAnswer):
    """The last event of a stream: the whole answer."""

    event: Literal["final"]

"""Models of the routes for operation: state, models, adapters, profiles, tokenization."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired

from pydantic import ConfigDict, Field, with_config
from typing_extensions import TypedDict

from runtime.server.serving.chat import ChatFields
from runtime.server.serving.generation import ModelName, ParseSpecial
from runtime.server.serving.request_body import Integers, RequestModel, api_field, optional
from runtime.server.serving.tools import EXAMPLE_TOOLS, ToolItems


class Health(TypedDict):
    status: Annotated[Literal["ok"], api_field("the process is alive")]


class Readiness(TypedDict):
    status: Annotated[Literal["ready", "not ready", "draining"], api_field("`ready` with status 200, otherwise 503")]


class AdapterState(TypedDict):
    """State of an adapter."""

    state: Annotated[str, api_field("state of the adapter; `ready` if requests may select it")]
    uri: Annotated[str, api_field("URI of the adapter")]
    message: Annotated[NotRequired[str], api_field("reason of a failure")]


class Started(TypedDict):
    """The model is loaded."""

    status: Literal["started"]
    model_revision: Annotated[NotRequired[str], api_field("commit of the model's hub repository")]
    adapters: Annotated[NotRequired[dict[str, AdapterState]], api_field("adapters by name, if any")]


class Starting(TypedDict):
    """How far loading is."""

    status: Literal["loading"]
    phase: Annotated[str, api_field("current phase")]
    bytes: Annotated[int, api_field("bytes done in this phase")]
    total_bytes: Annotated[int, api_field("bytes of this phase; 0 if unknown")]
    percent: Annotated[float, api_field("percentage of this phase")]


class RequestDefaults(TypedDict):
    """The values of a request that sets none."""

    temperature: Annotated[float, api_field("sampling temperature; 0: greedy")]
    top_p: Annotated[float, api_field("cumulative probability; 1: off")]
    top_k: Annotated[int, api_field("number of tokens; 0: off")]
    min_p: Annotated[float, api_field("fraction of the highest probability; 0: off")]
    decoding: Annotated[dict[str, Any], api_field("the algorithm, and the values of its and the strategy's fields")]


class Model(TypedDict):
    """What requests may name as `model`."""

    id: Annotated[str, api_field("name for the field `model`")]
    object: Literal["model"]
    created: Annotated[int, api_field("start time of the server, Unix seconds")]
    owned_by: Literal["unmask"]
    max_model_len: Annotated[int, api_field("maximum tokens of prompt and output")]
    family: Annotated[str, api_field("model family")]
    block_size: Annotated[int, api_field("tokens per block, or per canvas of a model without a mask")]
    mask_token_id: Annotated[int | None, api_field("id of the mask; null: the model has none")]
    eos_token_ids: Annotated[list[int], api_field("ids that end an output")]
    defaults: Annotated[RequestDefaults, api_field("values of a request that sets none")]
    parent: Annotated[NotRequired[str], api_field("of an adapter: its base model")]
    root: Annotated[NotRequired[str], api_field("of an adapter: its URI")]


class NamedModel(TypedDict):
    """A model as clients of System One list it."""

    name: Annotated[str, api_field("name for the field `model`")]
    description: Annotated[str, api_field("model family")]
    release_date: Annotated[str, api_field("date of the server's start")]


class ModelList(TypedDict):
    object: Literal["list"]
    data: Annotated[list[Model], api_field("the model under each of its names, and the adapters")]
    models: Annotated[list[NamedModel], api_field("the same for clients of System One")]


class Tokenized(TypedDict):
    tokens: Annotated[list[int], api_field("token ids that a generation route would use as the prompt")]
    count: Annotated[int, api_field("number of tokens")]
    max_model_len: Annotated[int, api_field("maximum tokens of prompt and output")]


class Detokenized(TypedDict):
    prompt: Annotated[str, api_field("text, including special tokens")]
    bytes: Annotated[
        NotRequired[list[list[int] | None]],
        api_field("with `return_bytes`: bytes of each token; null for special tokens"),
    ]


@with_config(ConfigDict(extra="allow"))
class TokenizerInfo(TypedDict):
    """Texts of special tokens; others that the checkpoint names are here too."""

    bos_token: Annotated[str | None, api_field("token that prompts begin with, if any")]
    eos_token: Annotated[str | None, api_field("token that ends the output")]
    pad_token: Annotated[str | None, api_field("padding token, if any")]
    mask_token: Annotated[str | None, api_field("mask token, if the model family has one")]
    chat_template: Annotated[str | None, api_field("Jinja template, if any")]
    max_token_id: Annotated[int, api_field("largest valid token id in requests")]


class AdapterLoaded(TypedDict):
    status: Literal["loaded"]
    lora_name: Annotated[str, api_field("name for the field `model` of requests")]


class AdapterUnloaded(TypedDict):
    status: Literal["unloaded"]
    lora_name: Annotated[str, api_field("name that requests can no longer use")]


class ProfileStarted(TypedDict):
    status: Literal["started"]
    backends: Annotated[list[int], api_field("indices of the recording engine processes")]


class ProfileStopped(TypedDict):
    status: Literal["stopped"]
    files: Annotated[list[str], api_field("paths of the written files on the server")]


MAX_PATH = 4096  # characters; Linux allows no longer one


class LoadAdapterRequest(RequestModel):
    """`lora_path`: a directory that the server sees, or ``hf://org/name[@revision]``."""

    lora_name: str = api_field("name for the field `model` of requests", "roman")
    lora_path: Annotated[str, Field(max_length=MAX_PATH)] = api_field(
        "directory on the server, `hf://org/name[@revision]` or `demo://NAME`", "demo://roman"
    )


class UnloadAdapterRequest(RequestModel):
    lora_name: str = api_field("name that requests can no longer use", "roman")


class TokenizeRequest(ChatFields):
    """Either a prompt or the messages of a chat."""

    model: ModelName = None
    prompt: str | None = optional("text to tokenize", "Solve: 12 + 30.")
    parse_special: ParseSpecial = None
    tools: ToolItems | None = optional("functions for the chat template", EXAMPLE_TOOLS)
    add_special_tokens: bool | None = optional("prepend the BOS token; default true", True)

    chat_fields = ("tools", *ChatFields.chat_fields)


class DetokenizeRequest(RequestModel):
    model: ModelName = None
    tokens: Integers = api_field("token ids", [40, 41, 42])
    return_bytes: bool | None = optional("also return the bytes of each token", False)

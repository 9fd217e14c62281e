"""What the server says of itself: its state, models, adapters, profiles, and what becomes of tokens."""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired

from pydantic import ConfigDict, with_config
from typing_extensions import TypedDict

from runtime.server.openai.chat_messages import EXAMPLE_CHAT, Messages
from runtime.server.openai.protocol import FinalMessage, GenerationPrompt, ModelName, TemplateArguments
from runtime.server.openai.tools import EXAMPLE_TOOLS, ToolItems
from runtime.server.schema_base import Integers, RequestModel, api_field


class Health(TypedDict):
    status: Annotated[Literal["ok"], api_field("the process is alive")]


class Readiness(TypedDict):
    status: Annotated[Literal["ready", "not ready", "draining"], api_field("`ready` with status 200, others with 503")]


class AdapterState(TypedDict):
    """How an adapter stands."""

    state: Annotated[str, api_field("whether it can be asked for")]
    uri: Annotated[str, api_field("where it is from")]
    message: Annotated[NotRequired[str], api_field("what is wrong with it")]


class Started(TypedDict):
    """The model is loaded."""

    status: Annotated[Literal["started"], api_field("always `started`")]
    model_revision: Annotated[NotRequired[str], api_field("the commit of the hub's repository that it is from")]
    adapters: Annotated[NotRequired[dict[str, AdapterState]], api_field("each by its name, where there are any")]


class Starting(TypedDict):
    """How far loading is."""

    status: Annotated[Literal["loading"], api_field("always `loading`")]
    phase: Annotated[str, api_field("what is done now")]
    bytes: Annotated[int, api_field("done, of this phase")]
    total_bytes: Annotated[int, api_field("of this phase, 0 where it is not known")]
    percent: Annotated[float, api_field("the same as a share")]


class Model(TypedDict):
    """What requests may name as `model`."""

    id: Annotated[str, api_field("the name")]
    object: Annotated[Literal["model"], api_field("always `model`")]
    created: Annotated[int, api_field("when the server started, in seconds since 1970")]
    owned_by: Annotated[Literal["unmask"], api_field("always `unmask`")]
    max_model_len: Annotated[int, api_field("most tokens of a prompt and its answer")]
    parent: Annotated[NotRequired[str], api_field("of an adapter: the model that it is for")]
    root: Annotated[NotRequired[str], api_field("of an adapter: where it is from")]


class ModelList(TypedDict):
    object: Annotated[Literal["list"], api_field("always `list`")]
    data: Annotated[list[Model], api_field("the model under each of its names, and the adapters")]


class Tokenized(TypedDict):
    tokens: Annotated[list[int], api_field("the ids that a generating route would feed")]
    count: Annotated[int, api_field("how many there are")]
    max_model_len: Annotated[int, api_field("most tokens of a prompt and its answer")]


class Detokenized(TypedDict):
    prompt: Annotated[str, api_field("the text, special tokens included")]
    bytes: Annotated[
        NotRequired[list[list[int] | None]], api_field("with `return_bytes`: each token's, null of special ones")
    ]


@with_config(ConfigDict(extra="allow"))
class TokenizerInfo(TypedDict):
    """Texts of special tokens; others that the checkpoint names are here too."""

    bos_token: Annotated[str | None, api_field("that prompts begin with, if they do")]
    eos_token: Annotated[str | None, api_field("that ends an answer")]
    pad_token: Annotated[str | None, api_field("that fills up rows, if there is one")]
    mask_token: Annotated[str | None, api_field("that stands where nothing is yet, in families that have one")]
    chat_template: Annotated[str | None, api_field("Jinja, if there is one")]
    max_token_id: Annotated[int, api_field("the largest id that a request may hold")]


class AdapterLoaded(TypedDict):
    status: Annotated[Literal["loaded"], api_field("always `loaded`")]
    lora_name: Annotated[str, api_field("what requests name as `model`")]


class AdapterUnloaded(TypedDict):
    status: Annotated[Literal["unloaded"], api_field("always `unloaded`")]
    lora_name: Annotated[str, api_field("what requests can name no more")]


class ProfileStarted(TypedDict):
    status: Annotated[Literal["started"], api_field("always `started`")]
    backends: Annotated[list[int], api_field("numbers of those that record")]


class ProfileStopped(TypedDict):
    status: Annotated[Literal["stopped"], api_field("always `stopped`")]
    files: Annotated[list[str], api_field("what was written, on the server's disk")]


class LoadAdapterRequest(RequestModel):
    """`lora_path`: a directory that the server sees, or ``hf://org/name[@revision]``."""

    lora_name: Annotated[str, api_field("what requests name as `model`", "roman")]
    lora_path: Annotated[
        str, api_field("a directory that the server sees, `hf://org/name[@revision]` or `demo://NAME`", "demo://roman")
    ]


class UnloadAdapterRequest(RequestModel):
    lora_name: Annotated[str, api_field("what requests can name no more", "roman")]


class TokenizeRequest(RequestModel):
    """Either a prompt or the messages of a chat."""

    model: ModelName = None
    prompt: Annotated[str | None, api_field("a text", "Solve: 12 + 30.")] = None
    messages: Annotated[Messages | None, api_field("a chat, instead of a prompt", EXAMPLE_CHAT)] = None
    tools: Annotated[ToolItems | None, api_field("functions that its template is told of", EXAMPLE_TOOLS)] = None
    chat_template_kwargs: TemplateArguments = None
    add_generation_prompt: GenerationPrompt = None
    continue_final_message: FinalMessage = None
    add_special_tokens: Annotated[
        bool | None, api_field("whether the token that begins a model's prompts comes first; default true", True)
    ] = None


class DetokenizeRequest(RequestModel):
    model: ModelName = None
    tokens: Annotated[Integers, api_field("ids", [40, 41, 42])]
    return_bytes: Annotated[bool | None, api_field("also the bytes of each token", False)] = None

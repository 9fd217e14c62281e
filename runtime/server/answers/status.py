"""What the server says of itself: its state, models, adapters, profiles, and what becomes of tokens."""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired

from pydantic import ConfigDict, with_config
from typing_extensions import TypedDict

from runtime.server.fields import said


class Health(TypedDict):
    status: Annotated[Literal["ok"], said("the process is alive")]


class Readiness(TypedDict):
    status: Annotated[Literal["ready", "not ready", "draining"], said("`ready` with status 200, others with 503")]


class AdapterState(TypedDict):
    """How an adapter stands."""

    state: Annotated[str, said("whether it can be asked for")]
    uri: Annotated[str, said("where it is from")]
    message: Annotated[NotRequired[str], said("what is wrong with it")]


class Started(TypedDict):
    """The model is loaded."""

    status: Annotated[Literal["started"], said("always `started`")]
    model_revision: Annotated[NotRequired[str], said("the commit of the hub's repository that it is from")]
    adapters: Annotated[NotRequired[dict[str, AdapterState]], said("each by its name, where there are any")]


class Starting(TypedDict):
    """How far loading is."""

    status: Annotated[Literal["loading"], said("always `loading`")]
    phase: Annotated[str, said("what is done now")]
    bytes: Annotated[int, said("done, of this phase")]
    total_bytes: Annotated[int, said("of this phase, 0 where it is not known")]
    percent: Annotated[float, said("the same as a share")]


class Model(TypedDict):
    """What requests may name as `model`."""

    id: Annotated[str, said("the name")]
    object: Annotated[Literal["model"], said("always `model`")]
    created: Annotated[int, said("when the server started, in seconds since 1970")]
    owned_by: Annotated[Literal["unmask"], said("always `unmask`")]
    max_model_len: Annotated[int, said("most tokens of a prompt and its answer")]
    parent: Annotated[NotRequired[str], said("of an adapter: the model that it is for")]
    root: Annotated[NotRequired[str], said("of an adapter: where it is from")]


class ModelList(TypedDict):
    object: Annotated[Literal["list"], said("always `list`")]
    data: Annotated[list[Model], said("the model under each of its names, and the adapters")]


class Tokenized(TypedDict):
    tokens: Annotated[list[int], said("the ids that a generating route would feed")]
    count: Annotated[int, said("how many there are")]
    max_model_len: Annotated[int, said("most tokens of a prompt and its answer")]


class Detokenized(TypedDict):
    prompt: Annotated[str, said("the text, special tokens included")]
    bytes: Annotated[
        NotRequired[list[list[int] | None]], said("with `return_bytes`: each token's, null of special ones")
    ]


@with_config(ConfigDict(extra="allow"))
class TokenizerInfo(TypedDict):
    """Texts of special tokens; others that the checkpoint names are here too."""

    bos_token: Annotated[str | None, said("that prompts begin with, if they do")]
    eos_token: Annotated[str | None, said("that ends an answer")]
    pad_token: Annotated[str | None, said("that fills up rows, if there is one")]
    mask_token: Annotated[str | None, said("that stands where nothing is yet, in families that have one")]
    chat_template: Annotated[str | None, said("Jinja, if there is one")]
    max_token_id: Annotated[int, said("the largest id that a request may hold")]


class AdapterLoaded(TypedDict):
    status: Annotated[Literal["loaded"], said("always `loaded`")]
    lora_name: Annotated[str, said("what requests name as `model`")]


class AdapterUnloaded(TypedDict):
    status: Annotated[Literal["unloaded"], said("always `unloaded`")]
    lora_name: Annotated[str, said("what requests can name no more")]


class ProfileStarted(TypedDict):
    status: Annotated[Literal["started"], said("always `started`")]
    backends: Annotated[list[int], said("numbers of those that record")]


class ProfileStopped(TypedDict):
    status: Annotated[Literal["stopped"], said("always `stopped`")]
    files: Annotated[list[str], said("what was written, on the server's disk")]

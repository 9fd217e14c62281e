"""`spec.lora`: adapters that requests name as their model, or one that is merged into the weights."""

from typing import Annotated

from pydantic import Field

from runtime.config.adapters import DEFAULT_LORAS
from unmask_operator.api.base import ObjectName, Revision, Section
from unmask_operator.api.flags import flag_field


class Adapter(Section):
    """A LoRA adapter as PEFT saves it."""

    name: Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")] = Field(
        description="Id under which clients ask for it, as their request's model."
    )
    uri: Annotated[str, Field(min_length=1, max_length=512)] = Field(
        description="Where it is: demo://NAME (inside the runtime's image), hf://ORG/NAME (a repository of the Hugging "
        "Face hub, downloaded by each pod) or pvc://CLAIM/PATH (a directory of the model's own claim, or of one that "
        "claimNames has)."
    )
    revision: Revision | None = Field(
        default=None,
        description="Branch, tag or commit of an hf:// repository. Default: what its main branch has when a pod loads "
        "it, which pods that start later may find changed.",
    )


class Lora(Section):
    """Adapters. The list may change while pods serve; what is beside it changes the pods, which are replaced then."""

    max_adapters: int | None = flag_field(
        "max-loras",
        "Adapters that the engine holds ready at once; others wait in the host's memory, and take the place of the one "
        f"that was used least recently. Default: {DEFAULT_LORAS}.",
    )
    max_rank: int | None = flag_field("max-lora-rank", "Largest rank of an adapter. Default: 16.")
    pre_merge: bool = Field(
        default=False,
        description="Whether the one adapter of the list is merged into the weights while they are loaded: every "
        "request has it, at no cost, under its name and the model's. A change of it replaces the pods. "
        "(--pre-merge-lora)",
    )
    claim_names: list[ObjectName] = Field(
        default=[],
        max_length=8,
        description="PersistentVolumeClaims that adapters lie on, mounted read-only; the model's own needs no entry.",
    )
    adapters: list[Adapter] = Field(
        default=[],
        max_length=256,
        description="Those there are. Unless one is merged, a change reaches running pods within a minute and a half; "
        "one that cannot be served is told in status.adapters.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )

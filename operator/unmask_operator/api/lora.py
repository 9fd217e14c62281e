"""`spec.lora`: LoRA adapters selected per request, or one adapter merged into the weights."""

from typing import Annotated

from pydantic import Field

from runtime.config.adapter_names import DEFAULT_MAX_LORAS
from unmask_operator.api.base import KEYED_BY_NAME, ObjectName, Revision, Section, flag_field


class Adapter(Section):
    """A LoRA adapter in PEFT format."""

    name: Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]
    """Model id with which requests select the adapter."""
    uri: Annotated[str, Field(min_length=1, max_length=512)]
    """Location of the adapter: demo://NAME (part of the runtime's image), hf://ORG/NAME (a Hugging Face repository that
    each pod downloads) or pvc://CLAIM/PATH (a directory of the model's claim or of one in claimNames)."""
    revision: Revision | None = None
    """Branch, tag or commit of an hf:// repository. Default: the main branch at the time when a pod loads the adapter,
    so pods may load different commits."""


class Lora(Section):
    """LoRA adapters. A change of the list reaches running pods; a change of another field replaces the pods."""

    max_adapters: int | None = flag_field(
        "max-loras",
        "Maximum number of adapters in device memory. Others stay in host memory and replace the least "
        f"recently used one. Default: {DEFAULT_MAX_LORAS}.",
    )
    max_rank: int | None = flag_field("max-lora-rank")
    """Maximum rank of an adapter. Default: 16."""
    pre_merge: bool = False
    """Whether to merge the only adapter of the list into the weights at load time. Every request uses it, at no extra
    cost, under its name and the model's. A change replaces the pods. (--pre-merge-lora)"""
    claim_names: list[ObjectName] = Field(default=[], max_length=8)
    """PersistentVolumeClaims that contain adapters, mounted read-only. The model's claim needs no entry."""
    adapters: list[Adapter] = Field(default=[], max_length=256, json_schema_extra=KEYED_BY_NAME)
    """Adapters to serve. Unless preMerge is set, a change reaches running pods within 90 seconds. status.adapters
    reports an adapter that fails to load."""

"""`status`: what the operator reports. The models only describe the schema; the package `status` writes plain data."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from unmask_operator.api.base import Section
from unmask_operator.status.limits import ENTRIES, REASON_PATTERN, TEXTS

_Count = Annotated[int, Field(ge=0)]
_CONDITION, _ADAPTER = TEXTS["conditions"], TEXTS["adapters"]
_Time = Annotated[str, Field(max_length=TEXTS["lastScaleTime"], json_schema_extra={"format": "date-time"})]


class Condition(Section):
    """As Kubernetes' metav1.Condition."""

    type: Annotated[str, Field(min_length=1, max_length=_CONDITION["type"])] = Field(
        description="What it is about, in CamelCase."
    )
    status: Literal["True", "False", "Unknown"] = Field(description="Whether it holds.")
    observed_generation: _Count | None = Field(default=None, description="The generation of the spec it speaks of.")
    last_transition_time: _Time = Field(description="When status last changed.")
    reason: Annotated[str, Field(min_length=1, max_length=_CONDITION["reason"], pattern=REASON_PATTERN)] = Field(
        description="Why, in one CamelCase word."
    )
    message: Annotated[str, Field(max_length=_CONDITION["message"])] = Field(description="Why, as a sentence.")


class ModelLoad(Section):
    """How far the slowest loading pod is."""

    phase: Annotated[str, Field(max_length=TEXTS["modelLoad"]["phase"])] | None = Field(
        default=None, description="What it does now."
    )
    percent: Annotated[int, Field(ge=0, le=100)] | None = Field(
        default=None, description="Share of the weights loaded."
    )


class AdapterStatus(Section):
    """An adapter of spec.lora that requests name."""

    name: Annotated[str, Field(max_length=_ADAPTER["name"])] = Field(description="Its name.")
    ready: _Count = Field(description="Pods that serve it.")
    total: _Count = Field(description="Pods that are Ready and have told.")
    failed: _Count = Field(description="Pods that cannot serve it.")
    message: Annotated[str, Field(max_length=_ADAPTER["message"])] | None = Field(
        default=None, description="Why, as one of them says."
    )


class AutoscalingStatus(Section):
    """The Builtin autoscaler's last decision."""

    desired: _Count | None = Field(default=None, description="Replicas it wants.")
    reason: Annotated[str, Field(max_length=TEXTS["autoscaling"]["reason"])] | None = Field(
        default=None, description="Why."
    )


class ModelStatus(Section):
    """The checkpoint that is served."""

    revision: Annotated[str, Field(max_length=TEXTS["model"]["revision"])] | None = Field(
        default=None, description="Commit that a repository of the hub without model.revision was resolved to."
    )


class Status(Section):
    """What the operator saw last."""

    observed_generation: _Count | None = Field(
        default=None, description="The generation of the spec that all this is about."
    )
    conditions: list[Condition] = Field(
        default=[],
        max_length=ENTRIES["conditions"],
        description="Accepted, Scheduled, ModelLoaded, RolloutComplete, AdaptersLoaded, ScalingReady, UpToDate, "
        "Protected, SettingsConsistent, Available, Ready, which carries the first failing reason, and Stalled, which "
        "is True while Ready cannot become True by itself.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    )
    replicas: _Count | None = Field(default=None, description="Pods there are.")
    ready_replicas: _Count | None = Field(default=None, description="Pods that serve.")
    updated_replicas: _Count | None = Field(default=None, description="Pods of the newest revision.")
    selector: Annotated[str, Field(max_length=TEXTS["selector"])] | None = Field(
        default=None, description="Label selector of the pods, for the scale subresource."
    )
    url: Annotated[str, Field(max_length=TEXTS["url"])] | None = Field(
        default=None, description="Base URL inside the cluster."
    )
    model_name: Annotated[str, Field(max_length=TEXTS["modelName"])] | None = Field(
        default=None, description="Id under which clients ask for the model."
    )
    model: ModelStatus | None = Field(default=None, description="The checkpoint that is served.")
    resolved_image: Annotated[str, Field(max_length=TEXTS["resolvedImage"])] | None = Field(
        default=None, description="Image the pods run, also where admission changed the one of the spec."
    )
    current_revision: Annotated[str, Field(max_length=TEXTS["currentRevision"])] | None = Field(
        default=None, description="The ControllerRevision that was last rolled out to every pod."
    )
    model_load: ModelLoad | None = Field(default=None, description="Progress while a model loads.")
    adapters: list[AdapterStatus] = Field(
        default=[],
        max_length=ENTRIES["adapters"],
        description="The adapters that requests name, as the pods tell of them.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )
    last_scale_time: _Time | None = Field(
        default=None, description="When the Builtin autoscaler last changed replicas."
    )
    autoscaling: AutoscalingStatus | None = Field(default=None, description="The Builtin autoscaler's last decision.")

"""Models of `status`, used for the schema only; the package `status` writes plain data."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from unmask_operator.api.base import Section
from unmask_operator.status.limits import ENTRIES, REASON_PATTERN, TEXTS

_Count = Annotated[int, Field(ge=0)]
_CONDITION, _ADAPTER, _CACHE = TEXTS["conditions"], TEXTS["adapters"], TEXTS["modelCache"]
_Time = Annotated[str, Field(max_length=TEXTS["lastScaleTime"], json_schema_extra={"format": "date-time"})]


class Condition(Section):
    """A condition, as metav1.Condition of Kubernetes."""

    type: Annotated[str, Field(min_length=1, max_length=_CONDITION["type"])] = Field(
        description="Type of the condition, in CamelCase."
    )
    status: Literal["True", "False", "Unknown"] = Field(description="Status of the condition.")
    observed_generation: _Count | None = Field(
        default=None, description="Generation of the spec that the condition refers to."
    )
    last_transition_time: _Time = Field(description="Time of the last change of status.")
    reason: Annotated[str, Field(min_length=1, max_length=_CONDITION["reason"], pattern=REASON_PATTERN)] = Field(
        description="Reason, as one CamelCase word."
    )
    message: Annotated[str, Field(max_length=_CONDITION["message"])] = Field(description="Message, as a sentence.")


class ModelLoad(Section):
    """Load progress of the slowest pod."""

    phase: Annotated[str, Field(max_length=TEXTS["modelLoad"]["phase"])] | None = Field(
        default=None, description="Current phase."
    )
    percent: Annotated[int, Field(ge=0, le=100)] | None = Field(
        default=None, description="Percentage of the weights loaded."
    )


class AdapterStatus(Section):
    """Status of an adapter of spec.lora.adapters."""

    name: Annotated[str, Field(max_length=_ADAPTER["name"])] = Field(description="Name of the adapter.")
    ready: _Count = Field(description="Number of pods that serve the adapter.")
    total: _Count = Field(description="Number of Ready pods that reported their adapters.")
    failed: _Count = Field(description="Number of pods that failed to load the adapter.")
    message: Annotated[str, Field(max_length=_ADAPTER["message"])] | None = Field(
        default=None, description="Error reported by one of the pods."
    )


class AutoscalingStatus(Section):
    """The Builtin autoscaler's last decision."""

    desired: _Count | None = Field(default=None, description="Desired number of replicas.")
    reason: Annotated[str, Field(max_length=TEXTS["autoscaling"]["reason"])] | None = Field(
        default=None, description="Reason of the decision."
    )
    asleep: bool | None = Field(
        default=None, description="True while the service has 0 replicas and the activator takes its requests."
    )
    activator_port: Annotated[int, Field(ge=1, le=65535)] | None = Field(
        default=None, description="Port on which the activator takes the requests of the service."
    )


class ModelStatus(Section):
    """The checkpoint that is served."""

    revision: Annotated[str, Field(max_length=TEXTS["model"]["revision"])] | None = Field(
        default=None, description="Commit that an hf:// repository without model.revision was resolved to."
    )


class ModelCacheStatus(Section):
    """The copy of the model for all pods."""

    claim: Annotated[str, Field(max_length=_CACHE["claim"])] | None = Field(
        default=None, description="Name of the PersistentVolumeClaim."
    )
    key: Annotated[str, Field(max_length=_CACHE["key"])] | None = Field(
        default=None, description="Directory of the repository in the claim."
    )
    commit: Annotated[str, Field(max_length=_CACHE["commit"])] | None = Field(
        default=None,
        description="Commit of the complete copy, or the hash of its list of objects. Also its directory below key.",
    )
    bytes: _Count | None = Field(default=None, description="Size of the copy.")
    completed_at: _Time | None = Field(default=None, description="Time when the Job completed.")
    percent: Annotated[int, Field(ge=0, le=100)] | None = Field(
        default=None, description="Progress of the download; 100 if the copy is complete."
    )


class Address(Section):
    """An address of the API."""

    name: Literal["external", "internal"] = Field(
        description="external: of the load balancer; internal: in the cluster."
    )
    url: Annotated[str, Field(max_length=TEXTS["addresses"]["url"])] = Field(description="Base URL of the API.")


class Status(Section):
    """Last observed state of a DiffusionLMService."""

    observed_generation: _Count | None = Field(
        default=None, description="Generation of the spec that the status refers to."
    )
    conditions: list[Condition] = Field(
        default=[],
        max_length=ENTRIES["conditions"],
        description="Conditions: Accepted, ModelCached, Scheduled, ModelLoaded, RolloutComplete, AdaptersLoaded, "
        "ScalingReady, RouteReady, UpToDate, Protected, SettingsConsistent, Available, Ready and Stalled. Ready has "
        "the first failing reason. Stalled is True while Ready cannot become True without a change.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    )
    replicas: _Count | None = Field(default=None, description="Number of pods.")
    ready_replicas: _Count | None = Field(default=None, description="Number of Ready pods.")
    updated_replicas: _Count | None = Field(default=None, description="Number of pods of the current revision.")
    selector: Annotated[str, Field(max_length=TEXTS["selector"])] | None = Field(
        default=None, description="Label selector of the pods, for the scale subresource."
    )
    url: Annotated[str, Field(max_length=TEXTS["url"])] | None = Field(
        default=None, description="Base URL of the API inside the cluster."
    )
    addresses: list[Address] = Field(
        default=[],
        max_length=ENTRIES["addresses"],
        description="Base URLs of the API, those of a load balancer first.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )
    model_name: Annotated[str, Field(max_length=TEXTS["modelName"])] | None = Field(
        default=None, description="Model id for requests."
    )
    model: ModelStatus | None = Field(default=None, description="The served checkpoint.")
    model_cache: ModelCacheStatus | None = Field(default=None, description="The copy of the model for all pods.")
    resolved_image: Annotated[str, Field(max_length=TEXTS["resolvedImage"])] | None = Field(
        default=None, description="Image of the pods, after changes by admission webhooks."
    )
    current_revision: Annotated[str, Field(max_length=TEXTS["currentRevision"])] | None = Field(
        default=None, description="Last ControllerRevision that was rolled out to all pods."
    )
    model_load: ModelLoad | None = Field(default=None, description="Load progress of the model.")
    adapters: list[AdapterStatus] = Field(
        default=[],
        max_length=ENTRIES["adapters"],
        description="Status of the adapters.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )
    last_scale_time: _Time | None = Field(
        default=None, description="Time when the Builtin autoscaler last changed replicas."
    )
    autoscaling: AutoscalingStatus | None = Field(default=None, description="Last decision of the Builtin autoscaler.")

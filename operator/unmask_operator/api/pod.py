"""The parts of the spec that shape the engine's pods: image pull, identity, caches, probes, the podTemplate."""

from typing import Annotated

from pydantic import Field

from unmask_operator.api.base import Annotations, Free, ObjectName, Quantity, Seconds, Section

CACHE_SIZE = "100Gi"
_Failures = Annotated[int, Field(ge=1, le=10_000)]


class SecretName(Section):
    """A Secret in the resource's namespace."""

    name: ObjectName = Field(description="Name of the Secret.")


class ServiceAccount(Section):
    """The ServiceAccount NAME-engine that the operator makes for the engine's pods. It has no permissions."""

    annotations: Annotations = Field(default={}, description="Annotations, such as a cloud provider's identity.")


class PodTemplate(Section):
    """What the operator's own fields do not cover, merged into the pod template by key; null deletes."""

    metadata: Free = Field(default={}, description="Labels and annotations; the selector's label is reserved.")
    spec: Free = Field(
        default={},
        description="A PodSpec's fields. Container main is the engine; its command, args and port are reserved. "
        "Containers, volumes and env merge by name, volumeMounts by mountPath, ports by containerPort; tolerations are "
        "appended.",
    )


class EmptyDir(Section):
    """A cache that lives as long as the pod."""

    size_limit: Quantity | None = Field(
        default=None,
        description="The most it may hold before the pod is evicted. With another size than the default the node must "
        "have as much disk free (a request for ephemeral-storage, unless resources names that). Default: "
        f"{CACHE_SIZE}, without the request.",
    )


class ModelCache(Section):
    """Where pods keep downloaded models."""

    empty_dir: EmptyDir = Field(default_factory=EmptyDir, description="A cache that lives as long as the pod.")


class _Probe(Section):
    period_seconds: Seconds = Field(default=5, description="Seconds between two checks.")
    timeout_seconds: Seconds = Field(default=5, description="Seconds an answer may take.")


class StartupProbe(_Probe):
    """GET /startup. periodSeconds * failureThreshold is the time a model may take to load."""

    failure_threshold: _Failures = Field(
        default=720, description="Failed checks after which the container is restarted."
    )


class ReadinessProbe(_Probe):
    """GET /ready."""

    failure_threshold: _Failures = Field(
        default=3, description="Failed checks after which the pod gets no more requests."
    )
    success_threshold: _Failures = Field(default=1, description="Good checks after which it gets requests again.")


class LivenessProbe(_Probe):
    """GET /health."""

    period_seconds: Seconds = Field(default=10, description="Seconds between two checks.")
    failure_threshold: _Failures = Field(default=6, description="Failed checks after which the container is restarted.")

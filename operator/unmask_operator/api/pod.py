"""Sections of the spec for the engine's pods: image pull, ServiceAccount, cache, probes and podTemplate."""

from typing import Annotated

from pydantic import Field

from unmask_operator.api.base import Annotations, Free, ObjectName, Quantity, Seconds, Section

CACHE_SIZE = "100Gi"
_Failures = Annotated[int, Field(ge=1, le=10_000)]


class SecretName(Section):
    """A Secret in the resource's namespace."""

    name: ObjectName
    """Name of the Secret."""


class ServiceAccount(Section):
    """The ServiceAccount NAME-engine of the engine's pods. It has no permissions."""

    annotations: Annotations = Field(default={})
    """Annotations, such as a cloud provider's workload identity."""


class PodTemplate(Section):
    """Additional fields of the pod template, merged by key; null deletes."""

    metadata: Free = Field(default={})
    """Labels and annotations. The selector's label is reserved."""
    spec: Free = Field(default={})
    """Fields of a PodSpec. The engine's container is main; its command, args, image and port are reserved. containers,
    initContainers, volumes, env and imagePullSecrets merge by name, volumeMounts by mountPath, ports by containerPort
    and protocol, hostAliases by ip. tolerations are appended; other lists are replaced."""


class EmptyDir(Section):
    """An emptyDir volume."""

    size_limit: Quantity | None = Field(
        default=None,
        description="Maximum size before the pod is evicted. Unless resources sets ephemeral-storage, a value other "
        f"than the default is also the pod's ephemeral-storage request. Default: {CACHE_SIZE}, without a "
        "request.",
    )


class ModelCache(Section):
    """Cache of downloaded models."""

    empty_dir: EmptyDir = EmptyDir()
    """Cache in an emptyDir volume, with the lifetime of the pod."""


class _Probe(Section):
    period_seconds: Seconds = 5
    """Seconds between checks."""
    timeout_seconds: Seconds = 5
    """Timeout of a check in seconds."""


class StartupProbe(_Probe):
    """Startup probe (GET /startup). A model must load within periodSeconds * failureThreshold."""

    failure_threshold: _Failures = 720
    """Failed checks after which the container is restarted."""


class ReadinessProbe(_Probe):
    """Readiness probe (GET /ready)."""

    failure_threshold: _Failures = 3
    """Failed checks after which the pod receives no requests."""
    success_threshold: _Failures = 1
    """Successful checks after which the pod receives requests again."""


class LivenessProbe(_Probe):
    """Liveness probe (GET /health)."""

    period_seconds: Seconds = 10
    """Seconds between checks."""
    failure_threshold: _Failures = 6
    """Failed checks after which the container is restarted."""

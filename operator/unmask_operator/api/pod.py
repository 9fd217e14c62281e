"""Sections of the spec for the engine's pods: image pull, ServiceAccount, cache, probes, podTemplate and hardware."""

from typing import Annotated

from pydantic import Field

from unmask_operator.api.base import KEYED_BY_NAME, Annotations, Free, ObjectName, Quantity, Seconds, Section

CACHE_SIZE = "100Gi"
DEFAULT_GPU = "nvidia.com/gpu"
_ClaimName = Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
_Size = Annotated[int, Field(ge=1, le=64)]
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


class Parallelism(Section):
    """Parallelism within a pod, which gets tensor * data / nodes GPUs."""

    tensor: _Size = 1
    """Tensor parallel size: number of GPUs per engine, for a model that is too large or too slow on one GPU. Must
    divide the model's attention heads and hidden sizes. (--tensor-parallel-size)"""
    data: _Size = 1
    """Data parallel size: number of engines per pod, each with its own copy of the model. (--data-parallel-size)"""
    expert: _Size = 1
    """Expert parallel size. 1: every expert is sharded across the GPUs of an engine. Equal to tensor: each GPU holds
    complete experts. (--expert-parallel-size)"""
    nodes: Annotated[int, Field(ge=1, le=16)] = 1
    """Number of pods per engine, on as many nodes, for a model that is too large for one node. Must divide tensor.
    Above 1, replicas are groups of pods. Requires LeaderWorkerSet, and lws.enabled in the operator's chart.
    (--num-nodes)"""
    topology_key: (
        Annotated[str, Field(min_length=1, max_length=316, pattern=r"^[A-Za-z0-9][-A-Za-z0-9_./]*$")] | None
    ) = None
    """Label of nodes. All pods of a group run on nodes with one value of it, such as a rack, and no other group runs
    there. Only with nodes above 1. Default: any nodes."""


class GpuClaim(Section):
    """A claim of Dynamic Resource Allocation, as in resourceClaims of a pod."""

    name: _ClaimName
    """Name of the claim in the pod."""
    resource_claim_name: ObjectName | None = None
    """Existing ResourceClaim, which all pods share."""
    resource_claim_template_name: ObjectName | None = None
    """Existing ResourceClaimTemplate, from which each pod gets a claim."""


class Gpu(Section):
    """GPUs of the pods. The engine uses GPUs if this section is present ({} is enough)."""

    resource_name: Annotated[
        str, Field(min_length=3, max_length=128, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9][-A-Za-z0-9_.]*$")
    ] = DEFAULT_GPU
    """Extended resource name of the cluster's GPUs, unless deviceClassName or resourceClaims is set."""
    device_class_name: ObjectName | None = None
    """DeviceClass of Dynamic Resource Allocation. Every pod gets a claim for parallelism.tensor * parallelism.data
    devices. Requires Kubernetes 1.34 and dra.enabled in the operator's chart."""
    resource_claims: Annotated[list[GpuClaim], Field(min_length=1, max_length=8)] | None = Field(
        default=None, json_schema_extra=KEYED_BY_NAME
    )
    """Claims of your own, which together provide parallelism.tensor * parallelism.data devices."""

    @property
    def extended_resource(self) -> str | None:
        """Name of the extended resource; None if claims provide the devices."""
        return None if self.device_class_name or self.resource_claims else self.resource_name


ResourceMap = Annotated[dict[str, Quantity], Field(max_length=16)]


class Resources(Section):
    """CPU, memory and other resources of the engine's container. `gpu` and `parallelism` set its GPUs."""

    limits: ResourceMap = Field(default={})
    """Maximum resources of the container."""
    requests: ResourceMap = Field(default={})
    """Resources that the scheduler reserves on the node. Default: the limits."""

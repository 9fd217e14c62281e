"""`spec`: the desired state of a DiffusionLMService."""

from typing import Annotated, Literal

from pydantic import Field

from unmask_operator.api.autoscaling import Autoscaling
from unmask_operator.api.base import STORED, CommonAnnotations, CommonLabels, Quantity, Section
from unmask_operator.api.engine import Engine
from unmask_operator.api.lora import Lora
from unmask_operator.api.model import Model
from unmask_operator.api.network import Auth, Monitoring, NetworkPolicy, Service
from unmask_operator.api.placement import Gpu, Parallelism, Resources
from unmask_operator.api.pod import (
    LivenessProbe,
    ModelCache,
    PodTemplate,
    ReadinessProbe,
    SecretName,
    ServiceAccount,
    StartupProbe,
)
from unmask_operator.api.rollout import PodDisruptionBudget, RolloutStrategy

# Sections that are not part of the pod template, and the kind of child that each one configures.
CHILD_OF = {
    "autoscaling": "HorizontalPodAutoscaler",
    "monitoring": "PodMonitor",
    "networkPolicy": "NetworkPolicy",
    "podDisruptionBudget": "PodDisruptionBudget",
    "service": "Service",
    "serviceAccount": "ServiceAccount",
}
SCALE = frozenset({"replicas", "suspend"})  # also written by autoscalers and kubectl scale
# Sections that are not part of the pod template. A revision records all others together with the pods.
OUTSIDE_POD_TEMPLATE = SCALE | CHILD_OF.keys() | {"rolloutStrategy"}
# Sections to parse while the pods stay unchanged: also the adapter list and the metadata of all children.
READ_WHEN_PINNED = OUTSIDE_POD_TEMPLATE | {"lora", "commonLabels", "commonAnnotations"}
DRAIN_DELAY = 10


class Spec(Section):
    """Desired state of a DiffusionLMService."""

    model: Model = Field(description="The checkpoint to serve.")
    engine: Engine = Field(default_factory=Engine, description="Decoding and memory settings.")
    parallelism: Parallelism = Field(
        default_factory=Parallelism, description="Number of engines per pod and of GPUs per engine."
    )
    gpu: Gpu | None = Field(
        default=None,
        description="If present ({} is enough), every pod gets parallelism.tensor * parallelism.data GPUs. Otherwise "
        "the engine runs on CPU.",
    )
    resources: Resources = Field(default_factory=Resources, description="CPU and memory of the engine's container.")
    shared_memory_size: Quantity | None = Field(
        default=None,
        description="Size limit of /dev/shm, whose content counts as memory. Default: 8Gi if parallelism.tensor is "
        "greater than 1, because its processes communicate through it; else 1Gi.",
    )
    image: Annotated[str, Field(min_length=1, max_length=512)] | None = Field(
        default=None, description="Runtime image, with a tag or digest. Default: the operator's setting."
    )
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] = Field(
        default="IfNotPresent", description="Image pull policy."
    )
    image_pull_secrets: list[SecretName] = Field(
        default=[],
        max_length=16,
        description="Secrets for the image registry.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )
    service_account: ServiceAccount = Field(
        default_factory=ServiceAccount, description="ServiceAccount of the pods, which the operator creates."
    )
    pod_template: PodTemplate = Field(
        default_factory=PodTemplate, description="Additional fields of the pod template, merged by key."
    )
    common_labels: CommonLabels = Field(
        default={},
        description="Labels of every object that the operator creates for this resource, including pods. A change "
        "replaces the pods. Labels of a section, such as podTemplate.metadata.labels, take precedence. "
        "Keys that the operator sets are reserved.",
    )
    common_annotations: CommonAnnotations = Field(
        default={},
        description="Annotations of every object that the operator creates for this resource, including pods. A "
        "change replaces the pods. Annotations of a section, such as service.annotations, take "
        "precedence. Keys that the operator sets are reserved.",
    )
    replicas: Annotated[int, Field(ge=0, le=1000)] = Field(
        default=1,
        description="Desired number of pods, as in the scale subresource. The autoscaler sets it if autoscaling is "
        "present; then omit it from manifests. In the edit that replaces it by autoscaling, running pods are kept.",
        json_schema_extra={STORED: True},  # the scale subresource reads the stored value
    )
    autoscaling: Autoscaling | None = Field(
        default=None, description="Automatic scaling of replicas, enabled if present."
    )
    rollout_strategy: RolloutStrategy = Field(
        default_factory=RolloutStrategy, description="Limits of a rolling update."
    )
    drain_timeout_seconds: Annotated[int, Field(ge=0, le=3600)] = Field(
        default=60, description="Seconds for running requests to finish when a pod terminates. (--drain-timeout)"
    )
    drain_delay_seconds: Annotated[int, Field(ge=0, le=3600)] | None = Field(
        default=None,
        description="Seconds for which a terminating pod continues normal service before it drains, until load "
        "balancers have removed its address. Cloud load balancers can take minutes. Default: "
        f"{DRAIN_DELAY}. (--drain-delay)",
    )
    startup_probe: StartupProbe = Field(
        default_factory=StartupProbe, description="Startup probe (GET /startup), which limits the model load time."
    )
    readiness_probe: ReadinessProbe = Field(default_factory=ReadinessProbe, description="Readiness probe (GET /ready).")
    liveness_probe: LivenessProbe = Field(default_factory=LivenessProbe, description="Liveness probe (GET /health).")
    lora: Lora | None = Field(default=None, description="LoRA adapters, enabled if present.")
    model_cache: ModelCache = Field(default_factory=ModelCache, description="Cache of downloaded models.")
    service: Service = Field(default_factory=Service, description="The Kubernetes Service of the pods.")
    auth: Auth | None = Field(default=None, description="Requires an API key from clients if present.")
    monitoring: Monitoring = Field(default_factory=Monitoring, description="Metrics for the cluster's Prometheus.")
    pod_disruption_budget: PodDisruptionBudget | None = Field(
        default=None,
        description="Limits of voluntary disruptions. Default: maxUnavailable 1, which also allows the eviction of a "
        "single replica.",
    )
    network_policy: NetworkPolicy | None = Field(
        default=None, description="Restricts access to the pods with a NetworkPolicy if present ({} is enough)."
    )
    suspend: bool = Field(default=False, description="Scales to 0 pods if true. All other objects stay.")

    @property
    def drain_delay(self) -> int:
        """Seconds after SIGTERM during which the server accepts new connections."""
        return DRAIN_DELAY if self.drain_delay_seconds is None else self.drain_delay_seconds

    @property
    def gpus_per_pod(self) -> int:
        """Number of GPUs per pod; 0 without `gpu`."""
        return self.parallelism.tensor * self.parallelism.data if self.gpu else 0

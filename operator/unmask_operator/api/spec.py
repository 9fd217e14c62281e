"""`spec`: the whole of what a user asks for."""

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

# Sections of which no pod is made, and the kind of the child that each becomes.
CHILD_OF = {
    "autoscaling": "HorizontalPodAutoscaler",
    "monitoring": "PodMonitor",
    "networkPolicy": "NetworkPolicy",
    "podDisruptionBudget": "PodDisruptionBudget",
    "service": "Service",
    "serviceAccount": "ServiceAccount",
}
SCALE = frozenset({"replicas", "suspend"})  # what others than the spec's author write
# What no pod is made of, these of the Deployment included; all else of a spec is pinned with the pods.
OUTSIDE_POD_TEMPLATE = SCALE | CHILD_OF.keys() | {"rolloutStrategy"}
# What is read where the pods stay as they are: also the list of adapters, and the metadata of all children.
READ_WHEN_PINNED = OUTSIDE_POD_TEMPLATE | {"lora", "commonLabels", "commonAnnotations"}
DRAIN_DELAY = 10


class Spec(Section):
    """What a DiffusionLMService asks for."""

    model: Model = Field(description="The checkpoint to serve.")
    engine: Engine = Field(default_factory=Engine, description="How the model is decoded and how much room it gets.")
    parallelism: Parallelism = Field(
        default_factory=Parallelism, description="How many engines one pod runs, and on how many GPUs each."
    )
    gpu: Gpu | None = Field(
        default=None,
        description="Present (it may be {}): every pod gets parallelism.tensor * parallelism.data GPUs and runs on "
        "them. Absent: the engine runs on CPU.",
    )
    resources: Resources = Field(default_factory=Resources, description="CPU and memory of the engine's container.")
    shared_memory_size: Quantity | None = Field(
        default=None,
        description="Size of /dev/shm; what is used counts as memory. Default: 8Gi with parallelism.tensor above 1, "
        "whose processes talk through it, else 1Gi.",
    )
    image: Annotated[str, Field(min_length=1, max_length=512)] | None = Field(
        default=None, description="The runtime's image, by tag or digest. Default: the operator's own choice."
    )
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] = Field(
        default="IfNotPresent", description="When nodes pull the image."
    )
    image_pull_secrets: list[SecretName] = Field(
        default=[], max_length=16, description="Secrets for pulling the image."
    )
    service_account: ServiceAccount = Field(
        default_factory=ServiceAccount, description="The ServiceAccount that the operator makes for the pods."
    )
    pod_template: PodTemplate = Field(
        default_factory=PodTemplate, description="Whatever else the pods need, merged into their template by key."
    )
    common_labels: CommonLabels = Field(
        default={},
        description="Labels of every object that the operator creates for this resource, pods included. A change "
        "replaces the pods. Labels of a section, such as podTemplate.metadata.labels, override them. Keys that the "
        "operator itself sets are reserved.",
    )
    common_annotations: CommonAnnotations = Field(
        default={},
        description="Annotations of every object that the operator creates for this resource, pods included. A change "
        "replaces the pods. Annotations of a section, such as service.annotations, override them. Keys that the "
        "operator itself sets are reserved.",
    )
    replicas: Annotated[int, Field(ge=0, le=1000)] = Field(
        default=1,
        description="Pods that serve; the field of the scale subresource. With autoscaling it is the autoscaler's "
        "output: leave it out of manifests.",
        json_schema_extra={STORED: True},  # the scale subresource reads it there
    )
    autoscaling: Autoscaling | None = Field(default=None, description="Present: replicas follow the load.")
    rollout_strategy: RolloutStrategy = Field(
        default_factory=RolloutStrategy, description="How a new revision replaces the old one."
    )
    drain_timeout_seconds: Annotated[int, Field(ge=0, le=3600)] = Field(
        default=60, description="Seconds that requests in flight have to finish when a pod ends. (--drain-timeout)"
    )
    drain_delay_seconds: Annotated[int, Field(ge=0, le=3600)] | None = Field(
        default=None,
        description="Seconds for which a pod that ends serves on as ever, before that, while load balancers forget its "
        f"address; those of clouds take minutes. Default: {DRAIN_DELAY}. (--drain-delay)",
    )
    startup_probe: StartupProbe = Field(
        default_factory=StartupProbe, description="Time a model may take to load: GET /startup."
    )
    readiness_probe: ReadinessProbe = Field(
        default_factory=ReadinessProbe, description="When a pod gets requests: GET /ready."
    )
    liveness_probe: LivenessProbe = Field(
        default_factory=LivenessProbe, description="When a container is restarted: GET /health."
    )
    lora: Lora | None = Field(default=None, description="Present: the service has room for adapters.")
    model_cache: ModelCache = Field(default_factory=ModelCache, description="Where pods keep downloaded models.")
    service: Service = Field(default_factory=Service, description="The Kubernetes Service in front of the pods.")
    auth: Auth | None = Field(default=None, description="Present: clients need a key.")
    monitoring: Monitoring = Field(default_factory=Monitoring, description="Metrics for the cluster's Prometheus.")
    pod_disruption_budget: PodDisruptionBudget | None = Field(
        default=None,
        description="How many pods a drain of nodes may take away at once. Default: maxUnavailable 1, which lets a "
        "single replica go.",
    )
    network_policy: NetworkPolicy | None = Field(
        default=None, description="Present (it may be {}): a NetworkPolicy limits who reaches the pods."
    )
    suspend: bool = Field(default=False, description="True: no pod runs, and all else stays.")

    @property
    def drain_delay(self) -> int:
        """Seconds of normal service after SIGTERM."""
        return DRAIN_DELAY if self.drain_delay_seconds is None else self.drain_delay_seconds

    @property
    def gpus_per_pod(self) -> int:
        """GPUs of one pod; 0 for a CPU service."""
        return self.parallelism.tensor * self.parallelism.data if self.gpu else 0

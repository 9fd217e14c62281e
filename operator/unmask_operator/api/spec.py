"""`spec`: the desired state of a DiffusionLMService, with the checkpoint and the limits of rollouts and drains."""

from typing import Annotated, Literal

from pydantic import Field

from unmask_operator.api import base, pod
from unmask_operator.api.autoscaling import Autoscaling
from unmask_operator.api.engine import Engine
from unmask_operator.api.lora import Lora
from unmask_operator.api.model_cache import ModelCache
from unmask_operator.api.network import Auth, InferencePool, Monitoring, NetworkPolicy, Route, Service

# Sections that are not part of the pod template, and the kind of child that each one configures.
CHILD_OF = {
    "autoscaling": "HorizontalPodAutoscaler",
    "monitoring": "PodMonitor",
    "networkPolicy": "NetworkPolicy",
    "podDisruptionBudget": "PodDisruptionBudget",
    "route": "HTTPRoute",
    "service": "Service",
    "serviceAccount": "ServiceAccount",
}
SCALE = frozenset({"replicas", "suspend"})  # also written by autoscalers and kubectl scale
# Sections that are not part of the pod template. A revision records all others together with the pods.
OUTSIDE_POD_TEMPLATE = SCALE | CHILD_OF.keys() | {"rolloutStrategy"}
# Sections to parse while the pods stay unchanged: also those of other children, and the metadata of all children.
READ_WHEN_PINNED = OUTSIDE_POD_TEMPLATE | {
    *("gpu", "parallelism", "lora", "inferencePool", "commonLabels", "commonAnnotations")
}
DRAIN_DELAY = 10


class Model(base.Section):
    """The checkpoint."""

    uri: Annotated[str, Field(min_length=1, max_length=512)]
    """Location of the checkpoint: demo:// (the small model in the runtime's image), hf://ORG/NAME (a Hugging Face
    repository that each pod downloads, or with modelCache.pvc one Job), s3://BUCKET/PREFIX or gs://BUCKET/PREFIX
    (objects that a Job downloads; needs modelCache.pvc), pvc://CLAIM/PATH (a directory of a PersistentVolumeClaim in
    the resource's namespace, mounted read-only) or oci://REGISTRY/REPOSITORY:TAG or @DIGEST (an image with the files in
    its root or in /models, mounted as an image volume; needs Kubernetes 1.35, or the feature gate ImageVolume)."""
    revision: base.Revision | None = None
    """Branch, tag or commit of an hf:// repository. Default: the commit of the main branch at the first start; a
    restart resolves it again."""
    name: Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.:/-]*$")] | None = None
    """Model id for requests. Default: the resource's name."""
    family: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[a-z0-9][a-z0-9_]*$")] | None = None
    """Model family (--model-name). Default: detected from the checkpoint."""
    token_secret_ref: base.SecretKeyRef | None = None
    """Access token for private hf:// repositories of the model and the adapters."""
    credentials_secret_ref: pod.SecretName | None = None
    """Secret whose keys are the environment of the Job that downloads an s3:// or gs:// model, such as
    AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY. Other pods do not get it. Default: the identity of the
    ServiceAccount."""


class RolloutStrategy(base.Section):
    """Limits of a rolling update."""

    max_surge: base.CountOrPercent = 1
    """Maximum number of pods above the desired number during a rollout. With parallelism.nodes above 1, of groups, and
    the default is 0."""
    max_unavailable: base.CountOrPercent = 0
    """Maximum number of pods below the desired number during a rollout. With parallelism.nodes above 1, of groups, and
    the default is 1."""


class PodDisruptionBudget(base.Section):
    """Limits of voluntary disruptions. Without a field: maxUnavailable 1."""

    min_available: base.CountOrPercent | None = None
    """Minimum number of available pods."""
    max_unavailable: base.CountOrPercent | None = None
    """Maximum number of unavailable pods."""


class Spec(base.Section):
    """Desired state of a DiffusionLMService."""

    model: Model
    """The checkpoint to serve."""
    engine: Engine = Engine()
    """Decoding and memory settings."""
    parallelism: pod.Parallelism = pod.Parallelism()
    """Number of engines per pod and of GPUs per engine."""
    gpu: pod.Gpu | None = None
    """If present ({} is enough), every pod gets parallelism.tensor * parallelism.data / parallelism.nodes GPUs.
    Otherwise the engine runs on CPU."""
    resources: pod.Resources = pod.Resources()
    """CPU and memory of the engine's container."""
    shared_memory_size: base.Quantity | None = None
    """Size limit of /dev/shm, whose content counts as memory. Default: 8Gi if parallelism.tensor is greater than 1,
    because its processes communicate through it; else 1Gi."""
    image: Annotated[str, Field(min_length=1, max_length=512)] | None = None
    """Runtime image, with a tag or digest. Default: the operator's setting."""
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"
    """Image pull policy."""
    image_pull_secrets: list[pod.SecretName] = Field(default=[], max_length=16, json_schema_extra=base.KEYED_BY_NAME)
    """Secrets for the image registry."""
    service_account: pod.ServiceAccount = pod.ServiceAccount()
    """ServiceAccount of the pods, which the operator creates."""
    pod_template: pod.PodTemplate = pod.PodTemplate()
    """Additional fields of the pod template, merged by key."""
    common_labels: base.Labels = Field(default={})
    """Labels of every object that the operator creates for this resource, including pods. A change replaces the pods.
    Labels of a section, such as podTemplate.metadata.labels, take precedence. Keys that the operator sets are
    reserved."""
    common_annotations: base.Annotations = Field(default={})
    """Annotations of every object that the operator creates for this resource, including pods. A change replaces the
    pods. Annotations of a section, such as service.annotations, take precedence. Keys that the operator sets are
    reserved."""
    replicas: Annotated[int, Field(ge=0, le=1000)] = Field(default=1, json_schema_extra={base.STORED: True})
    """Desired number of pods, or of groups of parallelism.nodes, as in the scale subresource. The autoscaler sets it if
    autoscaling is present; then omit it from manifests. In the edit that replaces it by autoscaling, running pods are
    kept."""
    autoscaling: Autoscaling | None = None
    """Automatic scaling of replicas, enabled if present."""
    rollout_strategy: RolloutStrategy = RolloutStrategy()
    """Limits of a rolling update."""
    drain_timeout_seconds: Annotated[int, Field(ge=0, le=3600)] = 60
    """Seconds for running requests to finish when a pod terminates. (--drain-timeout)"""
    drain_delay_seconds: Annotated[int, Field(ge=0, le=3600)] | None = Field(
        default=None,
        description="Seconds for which a terminating pod continues normal service before it drains, until load "
        "balancers have removed its address. Cloud load balancers can take minutes. Default: "
        f"{DRAIN_DELAY}. (--drain-delay)",
    )
    startup_probe: pod.StartupProbe = pod.StartupProbe()
    """Startup probe (GET /startup), which limits the model load time."""
    readiness_probe: pod.ReadinessProbe = pod.ReadinessProbe()
    """Readiness probe (GET /ready)."""
    liveness_probe: pod.LivenessProbe = pod.LivenessProbe()
    """Liveness probe (GET /health)."""
    lora: Lora | None = None
    """LoRA adapters, enabled if present."""
    model_cache: ModelCache = ModelCache()
    """Cache of downloaded models."""
    service: Service = Service()
    """The Kubernetes Service of the pods."""
    route: Route | None = None
    """Publishes the API through a Gateway with an HTTPRoute if present. Requires the Gateway API's CRDs and
    gateway.enabled in the operator's chart."""
    inference_pool: InferencePool | None = None
    """Creates an InferencePool of the pods if present ({} is enough), which the route then uses instead of the Service.
    It also labels the pods for endpoint pickers, so adding or removing it replaces the pods. Requires the CRDs of the
    Gateway API Inference Extension and gateway.enabled in the operator's chart."""
    auth: Auth | None = None
    """Requires an API key from clients if present."""
    monitoring: Monitoring = Monitoring()
    """Metrics for the cluster's Prometheus."""
    pod_disruption_budget: PodDisruptionBudget | None = None
    """Limits of voluntary disruptions. Default: maxUnavailable 1, which also allows the eviction of a single
    replica."""
    network_policy: NetworkPolicy | None = None
    """Restricts access to the pods with a NetworkPolicy if present ({} is enough)."""
    suspend: bool = False
    """Scales to 0 pods if true. All other objects stay."""

    @property
    def drain_delay(self) -> int:
        """Seconds after SIGTERM during which the server accepts new connections."""
        return DRAIN_DELAY if self.drain_delay_seconds is None else self.drain_delay_seconds

    @property
    def gpus_per_pod(self) -> int:
        """Number of GPUs per pod; 0 without `gpu`."""
        return self.parallelism.tensor * self.parallelism.data // self.parallelism.nodes if self.gpu else 0

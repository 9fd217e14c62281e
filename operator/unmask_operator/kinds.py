"""The kinds that the operator reads and writes, and their URLs."""

from dataclasses import dataclass

from unmask_operator.objects import API_VERSION, KIND, PLURAL, Ref


@dataclass(frozen=True)
class ApiKind:
    """A kind of object: its apiVersion, kind, and the plural in its URL."""

    api_version: str
    kind: str
    plural: str

    @property
    def group(self) -> str:
        return self.api_version.rpartition("/")[0]

    @property
    def resource(self) -> tuple[str, str, str]:
        """Group, version and plural, by which kopf identifies a kind."""
        return self.group, self.api_version.rpartition("/")[2], self.plural

    @property
    def api(self) -> str:
        """apiVersion and kind, the form of `Observed.apis`."""
        return f"{self.api_version}/{self.kind}"

    @property
    def root(self) -> str:
        return f"/{'apis' if self.group else 'api'}/{self.api_version}"

    def ref(self, name: str) -> Ref:
        return Ref(self.api_version, self.kind, name)

    def path(self, namespace: str | None, name: str = "", subresource: str = "") -> str:
        """Returns the path of a collection, of an object or of its subresource.

        Args:
            namespace: The namespace; None: the collection of all namespaces, or an object of a cluster-scoped kind.
            name: The object's name; "": the collection.
            subresource: The subresource of the object; "": the object itself.
        """
        parts = [self.root]
        if namespace is not None:
            parts += ["namespaces", namespace]
        parts += [self.plural, name, subresource]
        return "/".join(part for part in parts if part)


DLMS = ApiKind(API_VERSION, KIND, PLURAL)
PODS = ApiKind("v1", "Pod", "pods")
NODES = ApiKind("v1", "Node", "nodes")
LEASES = ApiKind("coordination.k8s.io/v1", "Lease", "leases")
EVENTS = ApiKind("events.k8s.io/v1", "Event", "events")
SERVICES = ApiKind("v1", "Service", "services")
SERVICE_ACCOUNTS = ApiKind("v1", "ServiceAccount", "serviceaccounts")
CONFIG_MAPS = ApiKind("v1", "ConfigMap", "configmaps")
DEPLOYMENTS = ApiKind("apps/v1", "Deployment", "deployments")
REVISIONS = ApiKind("apps/v1", "ControllerRevision", "controllerrevisions")
AUTOSCALERS = ApiKind("autoscaling/v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers")
NETWORK_POLICIES = ApiKind("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies")
DISRUPTION_BUDGETS = ApiKind("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets")
POD_MONITORS = ApiKind("monitoring.coreos.com/v1", "PodMonitor", "podmonitors")
SCALED_OBJECTS = ApiKind("keda.sh/v1alpha1", "ScaledObject", "scaledobjects")
ENDPOINT_SLICES = ApiKind("discovery.k8s.io/v1", "EndpointSlice", "endpointslices")
CLAIM_TEMPLATES = ApiKind("resource.k8s.io/v1", "ResourceClaimTemplate", "resourceclaimtemplates")
LEADER_WORKER_SETS = ApiKind("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", "leaderworkersets")
HTTP_ROUTES = ApiKind("gateway.networking.k8s.io/v1", "HTTPRoute", "httproutes")
INFERENCE_POOLS = ApiKind("inference.networking.k8s.io/v1", "InferencePool", "inferencepools")

# The kinds of children. Those of OPTIONAL are listed and not watched: some clusters lack them, or the operator has few
# objects of a kind of which the cluster has many.
OPTIONAL = (
    *(POD_MONITORS, SCALED_OBJECTS, ENDPOINT_SLICES, CLAIM_TEMPLATES),
    *(LEADER_WORKER_SETS, INFERENCE_POOLS, HTTP_ROUTES),
)
CHILDREN = (
    *(SERVICES, SERVICE_ACCOUNTS, CONFIG_MAPS, REVISIONS, DEPLOYMENTS),
    *(AUTOSCALERS, NETWORK_POLICIES, DISRUPTION_BUDGETS, *OPTIONAL),
)
# Kinds that the chart grants only with a value, and the field of Settings with that value.
GRANTED = {
    SCALED_OBJECTS: "keda",
    ENDPOINT_SLICES: "activator",
    CLAIM_TEMPLATES: "dra",
    LEADER_WORKER_SETS: "lws",
    INFERENCE_POOLS: "gateway",
    HTTP_ROUTES: "gateway",
}
# Kinds of children with spec.modelCache.pvc, for which the operator has permissions only if its chart enables them.
JOBS, CLAIMS = ApiKind("batch/v1", "Job", "jobs"), ApiKind("v1", "PersistentVolumeClaim", "persistentvolumeclaims")

CACHED = (DLMS, PODS, *CHILDREN)  # the kinds that are listed and watched
_BY_NAME = {(k.api_version, k.kind): k for k in (*CACHED, JOBS, CLAIMS, NODES, EVENTS)}


def kind_of(api_version: str, kind: str) -> ApiKind:
    """Returns the entry of an object's kind.

    Raises:
        KeyError: The operator does not use the kind.
    """
    return _BY_NAME[api_version, kind]

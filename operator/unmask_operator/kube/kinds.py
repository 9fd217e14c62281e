"""The kinds the operator deals with, and where the API server keeps them."""

from dataclasses import dataclass

from unmask_operator.objects import API_VERSION, KIND, PLURAL


@dataclass(frozen=True)
class ApiKind:
    """A namespaced kind of object: its apiVersion, kind, and the plural its URL has."""

    api_version: str
    kind: str
    plural: str

    @property
    def group(self) -> str:
        return self.api_version.rpartition("/")[0]

    @property
    def resource(self) -> tuple[str, str, str]:
        """Group, version and plural, as kopf identifies a kind."""
        return self.group, self.api_version.rpartition("/")[2], self.plural

    @property
    def api(self) -> str:
        """As `Observed.apis` names it."""
        return f"{self.api_version}/{self.kind}"

    @property
    def root(self) -> str:
        return f"/{'apis' if self.group else 'api'}/{self.api_version}"

    def path(self, namespace: str | None, name: str = "", subresource: str = "") -> str:
        """The URL of a namespace's collection, of an object or of its subresource; of the whole cluster for None."""
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
REVISIONS = ApiKind("apps/v1", "ControllerRevision", "controllerrevisions")
POD_MONITORS = ApiKind("monitoring.coreos.com/v1", "PodMonitor", "podmonitors")

# What a resource's children may be. Those of OPTIONAL are there only when their CustomResourceDefinition is.
CHILDREN = (
    ApiKind("v1", "Service", "services"),
    ApiKind("v1", "ServiceAccount", "serviceaccounts"),
    ApiKind("v1", "ConfigMap", "configmaps"),
    REVISIONS,
    ApiKind("apps/v1", "Deployment", "deployments"),
    ApiKind("autoscaling/v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers"),
    ApiKind("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies"),
    ApiKind("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets"),
    POD_MONITORS,
)
OPTIONAL = (POD_MONITORS,)

CACHED = (DLMS, PODS, *CHILDREN)  # the kinds that are listed and watched
KINDS_BY_RESOURCE = {kind.resource: kind for kind in CACHED}
_BY_NAME = {(k.api_version, k.kind): k for k in (*CACHED, NODES, EVENTS)}


def kind_of(api_version: str, kind: str) -> ApiKind:
    """The entry of an object's kind. KeyError for one that the operator does not deal with."""
    return _BY_NAME[api_version, kind]

"""How clients reach the pods: `spec.service`, `auth`, `monitoring`, `networkPolicy`, `route` and `inferencePool`."""

from typing import Annotated, Any, Literal

from pydantic import Field

from unmask_operator.api.base import Annotations, Free, Labels, LabelValue, ObjectName, SecretKeyRef, Section

GATEWAY_GROUP = "gateway.networking.k8s.io"
_ATOMIC: dict[str, Any] = {"x-kubernetes-list-type": "atomic"}
_SET: dict[str, Any] = {"x-kubernetes-list-type": "set"}
_Group = Annotated[str, Field(max_length=253, pattern=r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?)?$")]
_Kind = Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[A-Za-z]([-A-Za-z0-9]*[A-Za-z0-9])?$")]
_Namespace = Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
_Port = Annotated[int, Field(ge=1, le=65535)]
_HOSTNAME = r"^(\*\.)?[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
_Hostname = Annotated[str, Field(min_length=1, max_length=253, pattern=_HOSTNAME)]
_PATH = r"^(/[A-Za-z0-9_~-][A-Za-z0-9_.~-]*)+/?$|^/$"  # no "..", no escapes
_Path = Annotated[str, Field(min_length=1, max_length=256, pattern=_PATH)]
_Duration = Annotated[str, Field(min_length=2, max_length=32, pattern=r"^([0-9]{1,5}(h|m|s|ms)){1,4}$")]
_Weight = Annotated[int, Field(ge=0, le=1_000_000)]
_Key = Annotated[str, Field(min_length=1, max_length=316)]
_Class = Annotated[str, Field(min_length=1, max_length=316, pattern=r"^[a-z0-9]([-a-z0-9./]*[a-z0-9])?$")]
_Cidr = Annotated[str, Field(min_length=3, max_length=64, pattern=r"^[0-9a-fA-F.:]+/[0-9]{1,3}$")]


class Service(Section):
    """The Kubernetes Service of the pods. It has the resource's name."""

    type: Literal["ClusterIP", "NodePort", "LoadBalancer"] = "ClusterIP"
    """Type of the Service."""
    port: _Port = 80
    """Port of the Service, named http."""
    annotations: Annotations = Field(default={})
    """Annotations of the Service, such as load balancer settings."""
    load_balancer_class: _Class | None = None
    """Load balancer implementation, such as example.com/internal. Only with LoadBalancer. Can only be changed together
    with type. Default: the cluster's default."""
    load_balancer_source_ranges: Annotated[list[_Cidr], Field(min_length=1, max_length=64)] | None = None
    """Client address ranges that may connect, such as 10.0.0.0/8, if the load balancer supports this. Only with
    LoadBalancer. Default: all."""
    external_traffic_policy: Literal["Cluster", "Local"] | None = None
    """Local: nodes route external traffic only to their own pods, which preserves the client address. Only with
    NodePort and LoadBalancer. Default: Cluster."""
    ip_family_policy: Literal["SingleStack", "PreferDualStack", "RequireDualStack"] | None = None
    """IP families of the Service: one or both. A cluster with one family rejects RequireDualStack. Default:
    SingleStack."""
    ip_families: Annotated[list[Literal["IPv4", "IPv6"]], Field(min_length=1, max_length=2)] | None = None
    """IP families of the Service, the primary one first, which is immutable. Default: the cluster's default."""
    session_affinity: Literal["None", "ClientIP"] | None = None
    """ClientIP routes all requests of a client address to the same pod. Behind a proxy or an Ingress, all requests may
    have one address. Default: None."""


class Auth(Section):
    """Authentication of clients."""

    api_key_secret_ref: SecretKeyRef
    """API keys that clients send as bearer tokens: one or more, separated by commas or newlines, each with at least 16
    characters. A change of the Secret reaches running pods within minutes."""


class PodMonitor(Section):
    """A PodMonitor for the Prometheus operator."""

    labels: Labels = Field(default={})
    """Labels of the PodMonitor, for the Prometheus that selects it."""
    interval: Annotated[str, Field(max_length=16, pattern=r"^[0-9]+(ms|s|m)$")] = "15s"
    """Interval between scrapes, such as 15s."""


class Monitoring(Section):
    """Metrics for the cluster's Prometheus."""

    pod_monitor: PodMonitor | None = None
    """Creates a PodMonitor if present ({} is enough). Requires the Prometheus operator's CRDs."""


class Requirement(Section):
    """A requirement on a label."""

    key: _Key
    """Key of the label."""
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    """Operator of the comparison."""
    values: list[LabelValue] = Field(default=[], max_length=32)
    """Values of In and NotIn."""


class LabelSelector(Section):
    """A Kubernetes LabelSelector; {} selects everything."""

    match_labels: Labels = Field(default={})
    """Required labels and their values."""
    match_expressions: list[Requirement] = Field(default=[], max_length=16)
    """Requirements, all of which must be met."""


class IPBlock(Section):
    """A range of IP addresses."""

    cidr: _Cidr
    """Address range, such as 10.0.0.0/8."""
    except_: list[_Cidr] = Field(default=[], alias="except", max_length=16)
    """Excluded ranges."""


class Peer(Section):
    """A peer that may connect, as NetworkPolicyPeer of Kubernetes."""

    pod_selector: LabelSelector | None = None
    """Pods of this namespace, or of the namespaces that namespaceSelector selects."""
    namespace_selector: LabelSelector | None = None
    """Namespaces of the pods."""
    ip_block: IPBlock | None = None
    """IP addresses outside the cluster."""


class NetworkPolicy(Section):
    """NetworkPolicy of the pods, enabled if present ({} is enough). It always admits the operator."""

    from_: list[Peer] = Field(default=[], alias="from", max_length=16)
    """Peers that may send requests. Empty: every pod of the cluster."""
    metrics_from: list[Peer] = Field(default=[], max_length=16)
    """Additional peers, such as metrics collectors."""


class ParentRef(Section):
    """A Gateway, or a part of it, to which the route attaches."""

    name: ObjectName
    """Name of the Gateway."""
    namespace: _Namespace | None = None
    """Namespace of the Gateway, whose listeners must allow routes of this namespace. Default: the resource's own."""
    group: _Group = GATEWAY_GROUP
    """API group of the parent."""
    kind: _Kind = "Gateway"
    """Kind of the parent."""
    section_name: ObjectName | None = None
    """Listener of the Gateway. Default: all."""
    port: _Port | None = None
    """Port of the Gateway's listeners. Default: all."""


class Timeouts(Section):
    """Timeouts of the Gateway, such as 90s or 10m; 0s: none."""

    request: _Duration | None = None
    """Time for a complete answer. Default: 20 seconds more than the engine's --request-timeout."""
    backend_request: _Duration | None = None
    """Time for one try at a backend. Default: the Gateway's."""


class Backend(Section):
    """Another DiffusionLMService of the namespace that gets a part of the requests, such as a canary."""

    service: ObjectName
    """Name of the other DiffusionLMService, which is the name of its Service."""
    weight: _Weight
    """Weight of its part, relative to the sum of all weights; 0: no requests."""
    port: _Port = 80
    """Its service.port."""


class Route(Section):
    """An HTTPRoute of the Gateway API, with the resource's name."""

    parent_refs: Annotated[list[ParentRef], Field(min_length=1, max_length=8)] = Field(json_schema_extra=_ATOMIC)
    """Gateways to which the route attaches."""
    hostnames: list[_Hostname] = Field(default=[], max_length=16, json_schema_extra=_SET)
    """Host names of requests, such as llm.example.com or *.example.com. Default: those of the listeners."""
    paths: Annotated[list[_Path], Field(min_length=1, max_length=16)] = Field(default=["/v1"], json_schema_extra=_SET)
    """Prefixes of the paths that the Gateway passes on. Add /generate, /tokenize and /detokenize if clients use them.
    Default: [/v1]."""
    filters: list[Free] = Field(default=[], max_length=16, json_schema_extra=_ATOMIC)
    """Filters of the HTTPRoute's rule, as in HTTPRouteFilter of the Gateway API."""
    timeouts: Timeouts = Timeouts()
    """Timeouts of the Gateway."""
    weight: _Weight = 1
    """Weight of this service, relative to those of backends."""
    backends: list[Backend] = Field(
        default=[],
        max_length=8,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["service"]},
    )
    """Other DiffusionLMServices of the namespace that get a part of the requests."""
    labels: Labels = Field(default={})
    """Labels of the HTTPRoute."""
    annotations: Annotations = Field(default={})
    """Annotations of the HTTPRoute."""


class EndpointPickerRef(Section):
    """The Service of an endpoint picker, which selects the pod of each request."""

    name: ObjectName
    """Name of the endpoint picker's Service in this namespace."""
    port: _Port = 9002
    """Port of the endpoint picker."""
    failure_mode: Literal["FailOpen", "FailClose"] = "FailOpen"
    """FailOpen: while the endpoint picker does not answer, the Gateway selects a pod itself. FailClose: it rejects the
    requests."""


class InferencePool(Section):
    """An InferencePool of the Gateway API Inference Extension with the pods, enabled if present ({} is enough)."""

    endpoint_picker_ref: EndpointPickerRef | None = None
    """Endpoint picker of the pool. Most Gateways need one."""

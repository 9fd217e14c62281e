"""`spec.service`, `spec.auth`, `spec.monitoring`, `spec.networkPolicy`: network access to the pods."""

from typing import Annotated, Literal

from pydantic import Field

from unmask_operator.api.base import Annotations, Labels, LabelValue, SecretKeyRef, Section

_Key = Annotated[str, Field(min_length=1, max_length=316)]
_Class = Annotated[str, Field(min_length=1, max_length=316, pattern=r"^[a-z0-9]([-a-z0-9./]*[a-z0-9])?$")]
_Cidr = Annotated[str, Field(min_length=3, max_length=64, pattern=r"^[0-9a-fA-F.:]+/[0-9]{1,3}$")]


class Service(Section):
    """The Kubernetes Service of the pods. It has the resource's name."""

    type: Literal["ClusterIP", "NodePort", "LoadBalancer"] = "ClusterIP"
    """Type of the Service."""
    port: Annotated[int, Field(ge=1, le=65535)] = 80
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

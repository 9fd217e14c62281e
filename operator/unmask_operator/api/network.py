"""`spec.service`, `spec.auth`, `spec.monitoring`, `spec.networkPolicy`: how the service is reached, and by whom."""

from typing import Annotated, Literal

from pydantic import Field

from unmask_operator.api.base import Annotations, Labels, LabelValue, SecretKeyRef, Section

_Key = Annotated[str, Field(min_length=1, max_length=316)]
_Class = Annotated[str, Field(min_length=1, max_length=316, pattern=r"^[a-z0-9]([-a-z0-9./]*[a-z0-9])?$")]
_Cidr = Annotated[str, Field(min_length=3, max_length=64, pattern=r"^[0-9a-fA-F.:]+/[0-9]{1,3}$")]


class Service(Section):
    """The Kubernetes Service in front of the pods. It carries the resource's name."""

    type: Literal["ClusterIP", "NodePort", "LoadBalancer"] = Field(
        default="ClusterIP", description="Type of the Service."
    )
    port: Annotated[int, Field(ge=1, le=65535)] = Field(default=80, description="Port of the Service, named http.")
    annotations: Annotations = Field(default={}, description="Annotations, such as a load balancer's settings.")
    load_balancer_class: _Class | None = Field(
        default=None,
        description="Whose load balancer it is, such as example.com/internal. Only with LoadBalancer. It changes "
        "together with the type alone. Default: the cluster's own.",
    )
    load_balancer_source_ranges: Annotated[list[_Cidr], Field(min_length=1, max_length=64)] | None = Field(
        default=None,
        description="Addresses that may connect, such as 10.0.0.0/8, where the load balancer can tell. Only with "
        "LoadBalancer. Default: all.",
    )
    external_traffic_policy: Literal["Cluster", "Local"] | None = Field(
        default=None,
        description="Local: nodes forward traffic from outside to their own pods only, which keeps the client's "
        "address. Only with NodePort and LoadBalancer. Default: Cluster.",
    )
    ip_family_policy: Literal["SingleStack", "PreferDualStack", "RequireDualStack"] | None = Field(
        default=None,
        description="Whether the Service has addresses of both families. RequireDualStack is refused by a cluster with "
        "one family. Default: SingleStack.",
    )
    ip_families: Annotated[list[Literal["IPv4", "IPv6"]], Field(min_length=1, max_length=2)] | None = Field(
        default=None,
        description="Families of the Service's addresses, the main one first. The first one cannot change while the "
        "Service exists. Default: the cluster's own.",
    )
    session_affinity: Literal["None", "ClientIP"] | None = Field(
        default=None,
        description="ClientIP: requests from one client address reach the same pod. Behind a proxy or an Ingress all "
        "requests may have one address. Default: None.",
    )


class Auth(Section):
    """Who may call the service."""

    api_key_secret_ref: SecretKeyRef = Field(
        description="Bearer keys that clients must present: one, or several separated by commas or lines, of 16 "
        "characters or more each. A change of the Secret reaches running pods within minutes."
    )


class PodMonitor(Section):
    """A PodMonitor for the Prometheus operator."""

    labels: Labels = Field(default={}, description="Labels by which a Prometheus selects its monitors.")
    interval: Annotated[str, Field(max_length=16, pattern=r"^[0-9]+(ms|s|m)$")] = Field(
        default="15s", description="Time between two scrapes, such as 15s."
    )


class Monitoring(Section):
    """Metrics for the cluster's Prometheus."""

    pod_monitor: PodMonitor | None = Field(
        default=None, description="Present (it may be {}): a PodMonitor is made, where the cluster has that kind."
    )


class Requirement(Section):
    """One condition on a label."""

    key: _Key = Field(description="Key of the label.")
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"] = Field(description="How the label is compared.")
    values: list[LabelValue] = Field(default=[], max_length=32, description="Values for In and NotIn.")


class LabelSelector(Section):
    """Selects by labels, as Kubernetes' LabelSelector; {} selects everything."""

    match_labels: Labels = Field(default={}, description="Labels with their values.")
    match_expressions: list[Requirement] = Field(
        default=[], max_length=16, description="Conditions that must all hold."
    )


class IPBlock(Section):
    """A range of addresses."""

    cidr: _Cidr = Field(description="The range, such as 10.0.0.0/8.")
    except_: list[_Cidr] = Field(
        default=[], alias="except", max_length=16, description="Ranges inside that are left out."
    )


class Peer(Section):
    """Who may connect, as Kubernetes' NetworkPolicyPeer."""

    pod_selector: LabelSelector | None = Field(
        default=None, description="Pods, in this namespace or in those selected."
    )
    namespace_selector: LabelSelector | None = Field(default=None, description="Namespaces.")
    ip_block: IPBlock | None = Field(default=None, description="Addresses outside the cluster.")


class NetworkPolicy(Section):
    """Present (it may be {}): only these, and the operator, reach the pods."""

    from_: list[Peer] = Field(
        default=[], alias="from", max_length=16, description="Who may send requests. Empty: every pod of the cluster."
    )
    metrics_from: list[Peer] = Field(default=[], max_length=16, description="Who else may connect, to scrape metrics.")

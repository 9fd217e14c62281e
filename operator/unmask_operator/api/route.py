"""`spec.route`, `spec.inferencePool`: how a Gateway of the Gateway API reaches the pods."""

from typing import Annotated, Any, Literal

from pydantic import Field

from unmask_operator.api.base import Annotations, Free, Labels, ObjectName, Section

GATEWAY_GROUP = "gateway.networking.k8s.io"

_ATOMIC: dict[str, Any] = {"x-kubernetes-list-type": "atomic"}
_SET: dict[str, Any] = {"x-kubernetes-list-type": "set"}
_Group = Annotated[str, Field(max_length=253, pattern=r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?)?$")]
_Kind = Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[A-Za-z]([-A-Za-z0-9]*[A-Za-z0-9])?$")]
_Namespace = Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
_Port = Annotated[int, Field(ge=1, le=65535)]
_Hostname = Annotated[
    str,
    Field(
        min_length=1,
        max_length=253,
        pattern=r"^(\*\.)?[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$",
    ),
]
_Path = Annotated[
    str, Field(min_length=1, max_length=256, pattern=r"^(/[A-Za-z0-9_~-][A-Za-z0-9_.~-]*)+/?$|^/$")
]  # no "..", no escapes
_Duration = Annotated[str, Field(min_length=2, max_length=32, pattern=r"^([0-9]{1,5}(h|m|s|ms)){1,4}$")]
_Weight = Annotated[int, Field(ge=0, le=1_000_000)]


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

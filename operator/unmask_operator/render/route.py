"""Renders the HTTPRoute and the InferencePool of a resource."""

import math
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from runtime.config import BY_DEST
from unmask_operator.api import DiffusionLMService
from unmask_operator.kinds import HTTP_ROUTES, INFERENCE_POOLS
from unmask_operator.objects import Obj
from unmask_operator.render.labels import PORT, annotate, child, labels, main_container, serving_selector

ENGINE_LABEL = {"llm-d.ai/engine-type": "unmask"}  # tells an endpoint picker how to read the pod's metrics
_SLACK_SECONDS = 20  # the engine's own timeout, which has an error message, comes first
_LONGEST_SECONDS = 99_999  # five digits are the most that a duration of the Gateway API may have
_TIMEOUT = BY_DEST["request_timeout"]


def httproute(resource: DiffusionLMService, template: Mapping[str, Any]) -> Obj | None:
    """Renders the HTTPRoute; None if the spec has none.

    Args:
        resource: the parsed resource.
        template: the pod template, whose arguments have the engine's timeout.
    """
    route = resource.spec.route
    if route is None:
        return None
    own: Obj = {"group": "", "kind": "Service", "name": resource.name, "port": resource.spec.service.port}
    if resource.spec.inference_pool is not None:
        own = {"group": INFERENCE_POOLS.group, "kind": "InferencePool", "name": resource.name, "port": PORT}
    own["weight"] = route.weight
    others = [
        {"group": "", "kind": "Service", "name": other.service, "port": other.port, "weight": other.weight}
        for other in route.backends
    ]
    rule: Obj = {
        "matches": [{"path": {"type": "PathPrefix", "value": path}} for path in route.paths],
        "backendRefs": [own, *others],
        "timeouts": {
            "request": _request_timeout(template),
            **route.timeouts.model_dump(by_alias=True, exclude_none=True),
        },
    }
    if route.filters:
        rule["filters"] = route.filters
    spec: Obj = {
        "parentRefs": [parent.model_dump(by_alias=True, exclude_none=True) for parent in route.parent_refs],
        "rules": [rule],
    }
    if route.hostnames:
        spec["hostnames"] = list(route.hostnames)
    made = child(resource, HTTP_ROUTES, resource.name, spec=spec)
    made["metadata"]["labels"] = {**resource.spec.common_labels, **route.labels, **labels(resource.name)}
    annotate(made, route.annotations)
    return made


def inferencepool(resource: DiffusionLMService) -> Obj | None:
    """Renders the InferencePool; None if the spec has none."""
    pool = resource.spec.inference_pool
    if pool is None:
        return None
    spec: Obj = {
        "selector": {"matchLabels": serving_selector(resource)},
        "targetPorts": [{"number": PORT}],
    }
    if picker := pool.endpoint_picker_ref:
        spec["endpointPickerRef"] = {
            "group": "",
            "kind": "Service",
            "name": picker.name,
            "port": {"number": picker.port},
            "failureMode": picker.failure_mode,
        }
    return child(resource, INFERENCE_POOLS, resource.name, spec=spec)


def _request_timeout(template: Mapping[str, Any]) -> str:
    """Returns the Gateway's timeout for an engine: a little longer than its own; 0s if it has none."""
    arguments = main_container(template["spec"]).get("args") or ()
    seconds = math.ceil(_TIMEOUT.default)
    for argument, following in zip(arguments, (*arguments[1:], ""), strict=True):
        flag, equals, value = argument.partition("=")
        if flag.replace("_", "-") == f"--{_TIMEOUT.name}":
            with suppress(ValueError, OverflowError):  # arguments of another version's image are not checked
                seconds = math.ceil(float(value if equals else following))
    return f"{min(seconds + _SLACK_SECONDS, _LONGEST_SECONDS)}s" if seconds > 0 else "0s"

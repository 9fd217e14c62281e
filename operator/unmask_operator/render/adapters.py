"""LoRA adapters: the list is a ConfigMap, mounted as a directory that the engine watches.

The list is not part of the pod template, so that it may change while pods serve. The limits for adapters and the claims
that hold them are part of it. An adapter that is merged into the weights is part of the template, as the model is.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from unmask_operator.api import DiffusionLMService, Spec
from unmask_operator.objects import Obj, Ref
from unmask_operator.render import model_source
from unmask_operator.render.labels import adapters_config, child

VOLUME = "adapters"
MOUNT = "/etc/unmask/adapters"


def are_followed(spec: Spec) -> bool:
    """Returns whether the engine watches the list."""
    return spec.lora is not None and not spec.lora.pre_merge


def arguments(spec: Spec) -> Iterator[tuple[str, str]]:
    """Yields the engine's arguments, each with the field of the spec that it comes from."""
    if are_followed(spec):
        yield "spec.lora", f"--lora-config={MOUNT}"
    for merged in spec.lora.adapters if spec.lora and spec.lora.pre_merge else ():
        yield "spec.lora.adapters[0].name", f"--served-model-name={merged.name}"  # besides the model's own
        yield "spec.lora.adapters[0].uri", f"--lora-path={model_source.adapter(merged)}"
        yield "spec.lora.adapters[0]", "--use-lora=true"
        yield "spec.lora.preMerge", "--pre-merge-lora=true"


def config_map(resource: DiffusionLMService) -> Obj | None:
    """Returns the ConfigMap with the URIs of adapters by name, or None."""
    spec = resource.spec
    if not spec.lora or not are_followed(spec):
        return None
    data = {one.name: model_source.adapter(one) for one in spec.lora.adapters}
    return child(resource, "v1", "ConfigMap", adapters_config(resource.name), data=data)


def listed(children: Mapping[Ref, Obj], name: str) -> dict[str, str]:
    """Returns the data of the live ConfigMap of the resource `name`."""
    live = children.get(Ref("v1", "ConfigMap", adapters_config(name)), {})
    return live.get("data") or {}


def follows(pod: Mapping[str, Any]) -> bool:
    """Returns whether a pod or a pod template mounts the list."""
    return any(volume["name"] == VOLUME and "configMap" in volume for volume in pod["spec"].get("volumes") or ())

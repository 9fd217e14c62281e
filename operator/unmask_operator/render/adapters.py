"""Adapters that requests select. Their list is a ConfigMap, mounted as a directory that the engine watches.

The list is not part of the pod template, so it can change while pods serve. Adapter limits and claims are part of the
template, and so is an adapter that is merged into the weights.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from unmask_operator.api import DiffusionLMService, Spec
from unmask_operator.kinds import CONFIG_MAPS
from unmask_operator.objects import Obj, Ref
from unmask_operator.render import model
from unmask_operator.render.labels import adapters_config, child

VOLUME = "adapters"
MOUNT = "/etc/unmask/adapters"


def are_followed(spec: Spec) -> bool:
    """Returns whether the engine watches the list."""
    return spec.lora is not None and not spec.lora.pre_merge


def arguments(spec: Spec) -> Iterator[tuple[str, str]]:
    """Yields the field of the spec and the engine argument derived from it."""
    if are_followed(spec):
        yield "spec.lora", f"--lora-config={MOUNT}"
    for merged in spec.lora.adapters if spec.lora and spec.lora.pre_merge else ():
        yield "spec.lora.adapters[0].name", f"--served-model-name={merged.name}"  # in addition to the model's name
        yield "spec.lora.adapters[0].uri", f"--lora-path={model.adapter(merged)}"
        yield "spec.lora.adapters[0]", "--use-lora=true"
        yield "spec.lora.preMerge", "--pre-merge-lora=true"


def config_map(resource: DiffusionLMService) -> Obj | None:
    """Returns the ConfigMap with the location of each adapter by name; None without a list."""
    spec = resource.spec
    if not spec.lora or not are_followed(spec):
        return None
    data = {one.name: model.adapter(one) for one in spec.lora.adapters}
    return child(resource, CONFIG_MAPS, adapters_config(resource.name), data=data)


def listed(children: Mapping[Ref, Obj], name: str) -> dict[str, str]:
    """Returns the adapter locations by name in the live ConfigMap of the resource `name`."""
    live = children.get(CONFIG_MAPS.ref(adapters_config(name)), {})
    return live.get("data") or {}


def follows(pod: Mapping[str, Any]) -> bool:
    """Returns whether a pod or pod template mounts an adapter list."""
    return any(volume["name"] == VOLUME and "configMap" in volume for volume in pod["spec"].get("volumes") or ())

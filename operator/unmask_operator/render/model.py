"""Maps the uri of a model or an adapter to volumes, mounts and the location in the pod.

The first pod resolves an `hf://` model without a revision, and all later pods use the same commit.

The commit is not part of the pod template, because a change of the template would restart pods. Instead, `--model` ends
in a variable with the value of a ConfigMap key. The value is empty at first, so the engine loads the main branch. It is
"@COMMIT" after a pod has reported the loaded commit.

The key depends on the model and the restart annotation. Other edits retain the commit, a return to an earlier model
restores the commit of that model, and a restart resolves the commit again.
"""

import hashlib
import re
from collections.abc import Mapping
from typing import Any

from unmask_operator.api import DiffusionLMService, Spec, SpecError
from unmask_operator.api.lora import Adapter
from unmask_operator.kinds import CONFIG_MAPS
from unmask_operator.objects import Obj, section
from unmask_operator.render.groups import pod_template
from unmask_operator.render.labels import child, main_container, model_config

VARIABLE = "MODEL_REVISION"  # without the prefix UNMASK_, for which the runtime rejects variables that are no flags
MODEL_MOUNT = "/mnt/model"  # mount path of the claim of a pvc:// model
CLAIMS_MOUNT = "/mnt/adapters"  # parent of the mount paths of claims with adapters
COMMIT = re.compile(r"[0-9a-f]{40}")
IMAGES_UNAVAILABLE = (
    "the API server drops image volumes: oci:// needs Kubernetes 1.35, or 1.33 with the feature gate ImageVolume; "
    "upgrade the cluster, or use hf:// or pvc://"
)


def key(resource: DiffusionLMService, restarted_at: str) -> str | None:
    """Returns the ConfigMap key for the pods of `resource`; None if the model has no commit to resolve."""
    model = resource.spec.model
    if not model.uri.startswith("hf://") or model.revision or resource.spec.model_cache.pvc:
        return None
    return hashlib.sha256(f"{model.uri}\n{restarted_at}".encode()).hexdigest()[:16]


def variable(resource: DiffusionLMService, restarted_at: str) -> list[Obj]:
    """Returns the environment variable with the commit; empty if there is no commit to resolve."""
    if (found := key(resource, restarted_at)) is None:
        return []
    return [{"name": VARIABLE, "valueFrom": {"configMapKeyRef": {"name": model_config(resource.name), "key": found}}}]


def key_of(pod: Mapping[str, Any]) -> str | None:
    """Returns the ConfigMap key that a pod or pod template refers to; None without one."""
    env = main_container(pod["spec"]).get("env") or ()
    found = section(next((one for one in env if one["name"] == VARIABLE), {}), "valueFrom", "configMapKeyRef").get(
        "key"
    )
    return found if isinstance(found, str) else None  # the API server validates the podTemplate later


def config_map(resource: DiffusionLMService, commits: Mapping[str, str]) -> Obj | None:
    """Returns the ConfigMap of the commits by key ("" if unresolved); None without keys."""
    if not commits:
        return None
    data = {name: f"@{commit}" if commit else "" for name, commit in commits.items()}
    return child(resource, CONFIG_MAPS, model_config(resource.name), data=data)


def recorded(live: Mapping[str, Any]) -> dict[str, str]:
    """Returns the resolved commits of a ConfigMap by key."""
    data = live.get("data") or {}
    return {name: value[1:] for name, value in data.items() if value[:1] == "@" and COMMIT.fullmatch(value[1:])}


def volumes(spec: Spec) -> dict[str, str]:
    """Returns the PersistentVolumeClaims of the pods by volume name."""
    named = enumerate(spec.lora.claim_names if spec.lora else ())
    own = {"model": _on_claim(spec.model.uri)[0]} if spec.model.uri.startswith("pvc://") else {}
    return own | {f"adapters-{i}": claim for i, claim in named}


def images(spec: Spec) -> dict[str, str]:
    """Returns the images that are mounted as volumes, by volume name."""
    return {"model": spec.model.uri.removeprefix("oci://")} if spec.model.uri.startswith("oci://") else {}


def images_dropped(sent: Obj, answer: Obj) -> bool:
    """Returns whether the answer of the API server lacks an image volume of the pods of a workload.

    An API server without the feature drops them from pods, and accepts the rest without a word.
    """
    volumes = (section(pod_template(obj), "spec").get("volumes") or () for obj in (sent, answer))
    given, kept = ({one["name"] for one in listed if one.get("image")} for listed in volumes)
    return not given <= kept


def mounts(spec: Spec) -> dict[str, str]:
    """Returns volume names by mount path. With adapters, each claim is also mounted by name, including the model's."""
    found = volumes(spec)
    by_name = {f"{CLAIMS_MOUNT}/{claim}": volume for volume, claim in found.items()} if spec.lora else {}
    return ({MODEL_MOUNT: "model"} if "model" in found or images(spec) else {}) | by_name


def model_argument(spec: Spec) -> str | None:
    """Returns the value of ``--model``; None for demo://, the runtime's default.

    Raises:
        SpecError: the scheme is not supported by this version.
    """
    uri, revision = spec.model.uri, spec.model.revision
    match uri.partition("://")[0]:
        case "hf":
            return uri + (f"@{revision}" if revision else f"$({VARIABLE})")  # empty, or "@" and a commit
        case "pvc":
            return "/".join((MODEL_MOUNT, *_on_claim(uri)[1:]))
        case "oci":
            return MODEL_MOUNT
        case "demo":
            return None
        case "s3" | "gs":
            raise SpecError("spec.modelCache.pvc", "is required with an s3:// or gs:// model; set it")
        case scheme:
            fix = "use demo://, hf://, s3://, gs://, pvc:// or oci://"
            raise SpecError("spec.model.uri", f"{scheme}:// is not supported by this operator; {fix}")


def adapter(lora_adapter: Adapter) -> str:
    """Returns the location of an adapter for the runtime, which rejects unknown schemes per adapter."""
    if lora_adapter.uri.startswith("pvc://"):
        return "/".join((CLAIMS_MOUNT, *_on_claim(lora_adapter.uri)))
    return lora_adapter.uri + (f"@{lora_adapter.revision}" if lora_adapter.revision else "")


def _on_claim(uri: str) -> list[str]:
    """Splits a pvc:// uri into the claim and the path components."""
    return uri.removeprefix("pvc://").rstrip("/").split("/")

"""The commit of an `hf://` model without a revision: the first pod resolves it, and all later ones get the same.

Pods cannot learn it from their template, which must not change for it. Its `--model` ends in a variable that a key of
a ConfigMap holds: empty at first, so that the engine takes the repository's main branch, and "@COMMIT" once a pod has
said what it loaded. The key follows from the model and the restart annotation: an edit of something else keeps the
commit, going back to an earlier model restores its own, and a restart resolves it anew.
"""

import hashlib
import re
from collections.abc import Mapping
from typing import Any

from unmask_operator.api import DiffusionLMService
from unmask_operator.objects import Obj
from unmask_operator.render.labels import MAIN, child, model_config

VARIABLE = "MODEL_REVISION"  # not UNMASK_: the runtime refuses what is no flag of its own
COMMIT = re.compile(r"[0-9a-f]{40}")


def key(resource: DiffusionLMService, restarted_at: str) -> str | None:
    """The ConfigMap's key for the pods of `resource`; None for a model that has no commit to resolve."""
    model = resource.spec.model
    if not model.uri.startswith("hf://") or model.revision:
        return None
    return hashlib.sha256(f"{model.uri}\n{restarted_at}".encode()).hexdigest()[:16]


def variable(resource: DiffusionLMService, restarted_at: str) -> list[Obj]:
    """The engine's variable with the commit."""
    if (found := key(resource, restarted_at)) is None:
        return []
    return [{"name": VARIABLE, "valueFrom": {"configMapKeyRef": {"name": model_config(resource.name), "key": found}}}]


def key_of(pod: Mapping[str, Any]) -> str | None:
    """The key that a pod, or a pod template, reads the commit from."""
    for container in pod["spec"]["containers"]:
        for one in container.get("env", ()) if container["name"] == MAIN else ():
            if one["name"] == VARIABLE:
                found = ((one.get("valueFrom") or {}).get("configMapKeyRef") or {}).get("key")
                return found if isinstance(found, str) else None
    return None


def config_map(resource: DiffusionLMService, commits: Mapping[str, str]) -> Obj | None:
    """The ConfigMap of the commits by key ("": not known yet); None where there is no key."""
    if not commits:
        return None
    data = {name: f"@{commit}" if commit else "" for name, commit in commits.items()}
    return child(resource, "v1", "ConfigMap", model_config(resource.name), data=data)


def recorded(live: Mapping[str, Any]) -> dict[str, str]:
    """The commits that a ConfigMap holds."""
    data = live.get("data") or {}
    return {name: value[1:] for name, value in data.items() if value[:1] == "@" and COMMIT.fullmatch(value[1:])}

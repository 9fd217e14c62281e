"""Commit of an `hf://` model without a revision. The first pod resolves it, and all later pods use the same commit.

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

from unmask_operator.api import DiffusionLMService
from unmask_operator.objects import Obj, section
from unmask_operator.render.labels import child, main_container, model_config

VARIABLE = "MODEL_REVISION"  # without the prefix UNMASK_, for which the runtime rejects variables that are no flags
COMMIT = re.compile(r"[0-9a-f]{40}")


def key(resource: DiffusionLMService, restarted_at: str) -> str | None:
    """Returns the ConfigMap key for the pods of `resource`; None if the model has no commit to resolve."""
    model = resource.spec.model
    if not model.uri.startswith("hf://") or model.revision:
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
    variable: Obj = next((one for one in env if one["name"] == VARIABLE), {})
    found = section(section(variable, "valueFrom"), "configMapKeyRef").get("key")
    return found if isinstance(found, str) else None  # the API server validates the podTemplate later


def config_map(resource: DiffusionLMService, commits: Mapping[str, str]) -> Obj | None:
    """Returns the ConfigMap of the commits by key ("" if unresolved); None without keys."""
    if not commits:
        return None
    data = {name: f"@{commit}" if commit else "" for name, commit in commits.items()}
    return child(resource, "v1", "ConfigMap", model_config(resource.name), data=data)


def recorded(live: Mapping[str, Any]) -> dict[str, str]:
    """Returns the resolved commits of a ConfigMap by key."""
    data = live.get("data") or {}
    return {name: value[1:] for name, value in data.items() if value[:1] == "@" and COMMIT.fullmatch(value[1:])}

"""The CustomResourceDefinition, from the models. ``python -m tools.crd`` prints it as YAML."""

from __future__ import annotations

import sys

import yaml

from tools import rules
from tools.schema import Schema, structural
from tools.status import Status
from unmask_operator.api.spec import Spec
from unmask_operator.objects import GROUP, KIND, PLURAL, VERSION, Obj

NAME = f"{PLURAL}.{GROUP}"
SHORT_NAME = "dlms"
CATEGORY = "unmask"
_READY = '.status.conditions[?(@.type=="Ready")]'
_ADAPTERS = '.status.conditions[?(@.type=="AdaptersLoaded")]'

COLUMNS = (
    ("Ready", "string", f"{_READY}.status", "Whether everything the spec asks for holds.", 0),
    ("Reason", "string", f"{_READY}.reason", "The first thing that does not.", 0),
    ("Model", "string", ".spec.model.uri", "The checkpoint.", 0),
    ("Available", "integer", ".status.readyReplicas", "Pods that serve.", 0),
    ("Desired", "integer", ".spec.replicas", "Pods asked for.", 0),
    ("Adapters", "string", f"{_ADAPTERS}.status", "Whether every pod serves all adapters.", 1),
    ("URL", "string", ".status.url", "Base URL inside the cluster.", 1),
    ("Age", "date", ".metadata.creationTimestamp", "Time since it was created.", 0),
)


def schema(*, defaults: bool = False) -> Schema:
    """The schema of a whole resource; `defaults` as `structural` has it."""
    return {
        "description": "Serves a diffusion language model: pods that run the runtime, and a Service in front of them.",
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string", "description": f"{GROUP}/{VERSION}."},
            "kind": {"type": "string", "description": f"{KIND}."},
            "metadata": {"type": "object"},
            "spec": structural(Spec, defaults=defaults, nullable=not defaults),
            "status": structural(Status),
        },
        "x-kubernetes-validations": [rules.NAME.schema(), rules.ADAPTER_NAMES.schema()],
    }


def crd() -> Obj:
    """The whole object."""
    columns = [
        {"name": name, "type": kind, "jsonPath": path, "description": text} | ({"priority": low} if low else {})
        for name, kind, path, text, low in COLUMNS
    ]
    version = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "subresources": {
            "status": {},
            "scale": {
                "specReplicasPath": ".spec.replicas",
                "statusReplicasPath": ".status.replicas",
                "labelSelectorPath": ".status.selector",
            },
        },
        "additionalPrinterColumns": columns,
        "schema": {"openAPIV3Schema": schema()},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": NAME},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": PLURAL,
                "singular": KIND.lower(),
                "shortNames": [SHORT_NAME],
                "categories": [CATEGORY],
            },
            "versions": [version],
        },
    }


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: object) -> bool:  # the same type in two places is written twice
        return True


def text() -> str:
    """`crd()` as the YAML that `make crds` writes."""
    body = yaml.dump(crd(), Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True)
    return f"# Written by `make crds` from unmask_operator/api; edit the models there.\n{body}"


if __name__ == "__main__":
    sys.stdout.write(text())

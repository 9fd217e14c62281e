"""Generates the CustomResourceDefinition from the models. ``python -m tools.crd`` prints it as YAML."""

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
_ROUTE = '.status.conditions[?(@.type=="RouteReady")]'
_CACHED = '.status.conditions[?(@.type=="ModelCached")].status'
_ADAPTERS = '.status.conditions[?(@.type=="AdaptersLoaded")]'

COLUMNS = (
    ("Ready", "string", f"{_READY}.status", "Status of the condition Ready.", 0),
    ("Reason", "string", f"{_READY}.reason", "Reason of the condition Ready.", 0),
    ("Model", "string", ".spec.model.uri", "The checkpoint.", 0),
    ("Available", "integer", ".status.readyReplicas", "Number of Ready pods.", 0),
    ("Desired", "integer", ".spec.replicas", "Desired number of pods.", 0),
    ("Nodes", "integer", ".spec.parallelism.nodes", "Pods of an engine, if there are several.", 1),
    ("Cached", "string", _CACHED, "Status of the condition ModelCached.", 1),
    ("Adapters", "string", f"{_ADAPTERS}.status", "Status of the condition AdaptersLoaded.", 1),
    ("Route", "string", f"{_ROUTE}.status", "Status of the condition RouteReady.", 1),
    ("URL", "string", ".status.addresses[0].url", "Base URL of the API: of the load balancer, or in the cluster.", 0),
    ("Age", "date", ".metadata.creationTimestamp", "Time since creation.", 0),
)

# Fields for `kubectl get --field-selector`. Kubernetes before 1.31 ignores them.
SELECTABLE = (".spec.model.uri", ".spec.model.name")


def schema(*, defaults: bool = False) -> Schema:
    """Returns the schema of the resource. For `defaults` see `structural`."""
    return {
        "description": "Serves a diffusion language model: a Deployment of pods with the runtime, and a Service.",
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string", "description": f"{GROUP}/{VERSION}."},
            "kind": {"type": "string", "description": f"{KIND}."},
            "metadata": {"type": "object"},
            "spec": structural(Spec, defaults=defaults, nullable=not defaults),
            "status": structural(Status),
        },
        "x-kubernetes-validations": [rules.NAME.schema(), rules.ADAPTER_NAMES.schema(), rules.OTHER_BACKENDS.schema()],
    }


def crd() -> Obj:
    """Returns the CustomResourceDefinition."""
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
        "selectableFields": [{"jsonPath": path} for path in SELECTABLE],
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
    def ignore_aliases(self, data: object) -> bool:  # no YAML anchors for repeated types
        return True


def text() -> str:
    """Returns `crd()` as YAML with a header."""
    body = yaml.dump(crd(), Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True)
    return f"# Written by `make crds` from unmask_operator/api; edit the models there.\n{body}"


if __name__ == "__main__":
    sys.stdout.write(text())

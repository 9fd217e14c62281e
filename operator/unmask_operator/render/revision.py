"""ControllerRevisions pin what pods are made of, so that a new operator restarts no engine.

The newest one holds the spec it was made from, the resolved image and the whole pod template. As long as it covers the
resource, pods are made from it and not from what this operator would render; the next edit of the spec, or a restart,
makes a new one. A change of `replicas` alone is no edit: scaling never replaces pods. The older ones that are kept show
what ran before, for a rollback by hand.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from unmask_operator.api import DiffusionLMService, SpecError, parse
from unmask_operator.objects import API_VERSION, KIND, RESTARTED_AT, Obj, controller_uid
from unmask_operator.render import names
from unmask_operator.render.pod import Form

KEPT = 3


@dataclass(frozen=True)
class Pin:
    """One ControllerRevision.

    Attributes:
        number: counts the forms of a resource's pods; the highest is the current one.
        spec: the resource's spec that it was made from, without `replicas`.
        restarted_at: the restart annotation's value at the time, "" without.
        form: the resolved image and the pod template.
    """

    number: int
    spec: Mapping[str, Any]
    restarted_at: str
    form: Form

    def covers(self, service: DiffusionLMService, spec: Mapping[str, Any]) -> bool:
        """Whether the resource, whose raw spec is `spec`, asks for nothing that it did not ask for when this was made.

        Specs also count as the same when they mean the same: a field that a newer CRD adds with a default is no edit.
        Removing the restart annotation restarts nothing.
        """
        restarted = service.annotations.get(RESTARTED_AT) or self.restarted_at
        if restarted != self.restarted_at:
            return False
        return _digest(_inputs(spec)) == _digest(self.spec) or self._means_the_same(service)

    def _means_the_same(self, service: DiffusionLMService) -> bool:
        try:
            then = parse({"apiVersion": API_VERSION, "kind": KIND, "metadata": service.metadata, "spec": self.spec})
        except SpecError:
            return False
        replicas = service.spec.replicas
        return then.spec.model_copy(update={"replicas": replicas}) == service.spec


def pins(children: Iterable[Obj], uid: str) -> list[Pin]:
    """The pins that the resource with this uid controls, newest first."""
    own = (c for c in children if c["kind"] == "ControllerRevision" and controller_uid(c) == uid)
    return sorted((_read(c) for c in own), key=lambda pin: -pin.number)


def _read(obj: Obj) -> Pin:
    data = obj["data"]
    return Pin(obj["revision"], data["spec"], data["restartedAt"], Form(data["image"], data["template"]))


def new_pin(service: DiffusionLMService, spec: Mapping[str, Any], number: int, form: Form) -> Pin:
    return Pin(number, _inputs(spec), service.annotations.get(RESTARTED_AT, ""), form)


def revision(service: DiffusionLMService, pin: Pin) -> Obj:
    """The ControllerRevision of `pin`; its data never change."""
    data = {
        "spec": pin.spec,
        "restartedAt": pin.restarted_at,
        "image": pin.form.image,
        "template": pin.form.template,
    }
    name = names.revision(service.name, pin.number)
    return names.child(
        "apps/v1", "ControllerRevision", service.name, name, service.namespace, revision=pin.number, data=data
    )


def _inputs(spec: Mapping[str, Any]) -> dict[str, Any]:
    return {member: value for member, value in spec.items() if member != "replicas"}


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()

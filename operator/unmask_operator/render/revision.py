"""ControllerRevisions pin what pods are made of, so that nothing restarts an engine but what changes it.

The newest one holds the spec it was made from, the resolved image and the whole pod template. Pods are made from it and
not from what this operator would render. An edit that this operator renders to the same template makes a pin with the
old template; only one that changes the template, and the restart annotation, adopt this operator's form. Scaling and
suspending are no edits. The pins of older templates that are kept show what ran before, for a rollback by hand.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from unmask_operator.api import DiffusionLMService, SpecError, parse
from unmask_operator.api.nulls import without_nulls
from unmask_operator.api.spec import BESIDE_PODS, SCALE
from unmask_operator.objects import RESTARTED_AT, Obj, controller_uid
from unmask_operator.render.labels import child, revision_name
from unmask_operator.render.pod import Form, form
from unmask_operator.settings import Settings

FORMAT = 1  # of a pin's data
KEPT = 3  # templates


@dataclass(frozen=True)
class Pin:
    """One ControllerRevision. What it holds has been accepted once, and is not checked again."""

    number: int  # counts the pins of a resource; the highest is the current one
    # What it was made for, without `replicas` and `suspend`; None: it stands for pods that run as they are, since the
    # pin they are of cannot be read.
    spec: Mapping[str, Any] | None
    restarted_at: str  # the restart annotation's last value, "" without
    form: Form
    stored: Obj | None = None  # the data as in the cluster, where they can never change; None for a pin to be made

    def rendered(self, metadata: Mapping[str, Any], settings: Settings) -> Form | None:
        """The form that this operator gives pods of the pin's spec; None where it refuses that spec today."""
        try:
            service = parse({"metadata": metadata, "spec": self.spec}, runs=True)
            return form(service, settings, self.restarted_at)
        except SpecError:
            return None


@dataclass(frozen=True)
class Unread:
    """A pin in a format that this operator does not know, since another version wrote it."""

    number: int
    format: object


def pins(children: Iterable[Obj], uid: str) -> list[Pin | Unread]:
    """The pins that the resource with this uid controls, newest first."""
    own = (c for c in children if c["kind"] == "ControllerRevision" and controller_uid(c) == uid)
    return sorted((_read(c) for c in own), key=lambda pin: -pin.number)


def _read(obj: Obj) -> Pin | Unread:
    data = obj.get("data") or {}
    known = data.get("format", FORMAT)  # the first pins said none
    if known != FORMAT or not {"spec", "restartedAt", "image", "template"} <= data.keys():
        return Unread(obj["revision"], known)
    form = Form(data["image"], data["template"])
    return Pin(obj["revision"], _inputs(data["spec"]), data["restartedAt"], form, stored=data)


def follow(obj: Obj, held: Pin | None, number: int, settings: Settings) -> tuple[DiffusionLMService, Pin]:
    """The resource and the pin that its pods are made of: `held` while nothing is edited that a pin keeps, else the
    pin `number`, with the form of `held` unless the edit changes it or a restart is asked for.

    SpecError: this operator refuses what the resource asks for. Of what `held` covers nothing is refused: it runs.
    """
    spec: Obj = obj["spec"] if isinstance(obj.get("spec"), dict) else {}
    annotated = (obj["metadata"].get("annotations") or {}).get(RESTARTED_AT)
    restarted_at = annotated or (held.restarted_at if held else "")  # removing the annotation restarts nothing
    if held and restarted_at == held.restarted_at and (held.spec is None or _of_pods(spec) == _of_pods(held.spec)):
        unchanged = held.spec is None or held.spec == _inputs(spec)
        return parse(obj, pods_are_pinned=True), held if unchanged else _same_pods(held, number, spec)
    service = parse(obj, runs=held is not None)
    fresh = form(service, settings, restarted_at)
    if held and held.rendered(obj["metadata"], settings) == fresh:
        return service, _same_pods(held, number, spec)
    return service, Pin(number, _inputs(spec), restarted_at, fresh)


def _same_pods(held: Pin, number: int, spec: Mapping[str, Any]) -> Pin:
    return replace(held, number=number, spec=_inputs(spec), stored=None)


def pin_of(obj: Mapping[str, Any], restarted_at: str, found: Form) -> Pin:
    """The first pin of a resource, for pods that run in the form `found`."""
    spec = obj["spec"] if isinstance(obj.get("spec"), dict) else {}
    return Pin(1, _inputs(spec), restarted_at, found)


def kept(newest_first: Sequence[Pin | Unread]) -> set[int]:
    """The numbers of the pins that stay: the last one of each of the newest few templates, and those not understood."""
    templates: list[Obj] = []
    numbers = set()
    for pin in newest_first:
        if isinstance(pin, Unread):
            numbers.add(pin.number)
        elif pin.form.template not in templates and len(templates) < KEPT:
            templates.append(pin.form.template)
            numbers.add(pin.number)
    return numbers


def revision(service: DiffusionLMService, pin: Pin) -> Obj | None:
    """The ControllerRevision of `pin`; None for one that stands for what cannot be read."""
    if pin.spec is None:
        return None
    data = pin.stored or {
        "format": FORMAT,
        "spec": pin.spec,
        "restartedAt": pin.restarted_at,
        "image": pin.form.image,
        "template": pin.form.template,
    }
    name = revision_name(service.name, pin.number)
    return child(service, "apps/v1", "ControllerRevision", name, revision=pin.number, data=data)


def _inputs(spec: Mapping[str, Any]) -> dict[str, Any]:
    return {member: value for member, value in without_nulls(spec).items() if member not in SCALE}


def _of_pods(spec: Mapping[str, Any]) -> dict[str, Any]:
    return {member: value for member, value in without_nulls(spec).items() if member not in BESIDE_PODS}

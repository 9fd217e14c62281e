"""A whole DiffusionLMService, from the API server's JSON to typed data."""

from __future__ import annotations

import copy
import functools
import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from unmask_operator.api.errors import SpecError, field_path, spec_errors
from unmask_operator.api.spec import BESIDE_PODS, SCALE, Spec


@dataclass(frozen=True)
class DiffusionLMService:
    """The resource as the operator works with it: metadata as it came, the spec with its defaults.

    Attributes:
        unread: sections of the spec with a value that this operator does not know, and what it is; `spec` is without.
    """

    metadata: Mapping[str, Any]
    spec: Spec
    unread: Mapping[str, SpecError] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return str(self.metadata["name"])

    @property
    def namespace(self) -> str:
        return str(self.metadata["namespace"])

    @property
    def uid(self) -> str:
        return str(self.metadata["uid"])

    @property
    def model_name(self) -> str:
        """The id under which clients ask for the model."""
        return self.spec.model.name or self.name


def parse(obj: Mapping[str, Any], *, runs: bool = False, pods_are_pinned: bool = False) -> DiffusionLMService:
    """The typed resource. SpecError names the first field that is wrong, whatever the spec holds.

    Namespace and uid, which every object of an API server has, are "default" and "" without.
    Fields that this operator does not know, as those of a newer CRD, are left out: `unknown_fields` names them.

    Args:
        runs: a value of a section beside the pods that this operator does not know is no mistake but another version's:
            what there is of that section can be left alone.
        pods_are_pinned: it runs, and only the sections of BESIDE_PODS are looked at; the others have no say in what is
            rendered.
    """
    asked = obj.get("spec")
    if pods_are_pinned and isinstance(asked, Mapping):
        asked = {"model": {"uri": "demo://"}, **{k: v for k, v in asked.items() if k in BESIDE_PODS}}
    asked = _without(asked, _unknown(asked))
    unread: dict[str, SpecError] = {}
    try:
        spec = Spec.model_validate(asked)
    except ValidationError as error:
        unread = spec_errors(error, "spec")
        if not (runs or pods_are_pinned) or unread.keys() - (BESIDE_PODS - SCALE):
            raise next(iter(unread.values())) from None
        spec = Spec.model_validate({name: value for name, value in asked.items() if name not in unread})
    return DiffusionLMService({"namespace": "default", "uid": ""} | dict(obj["metadata"]), spec, unread)


def unknown_fields(spec: Any) -> tuple[str, ...]:
    """The fields of a spec that this operator does not know."""
    return tuple(field_path("spec", place) for place in _unknown(spec))


def _unknown(spec: Any) -> list[tuple[int | str, ...]]:
    try:
        Spec.model_validate(spec)
    except ValidationError as error:
        return [wrong["loc"] for wrong in error.errors(include_url=False) if wrong["type"] == "extra_forbidden"]
    return []


def _without(spec: Any, places: Iterable[tuple[int | str, ...]]) -> Any:
    spec = copy.deepcopy(spec)
    for *way, last in places:
        del functools.reduce(operator.getitem, way, spec)[last]
    return spec

"""A whole DiffusionLMService, from the API server's JSON to typed data."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from unmask_operator.api.errors import SpecError, field_path, spec_errors
from unmask_operator.api.nulls import without_nulls
from unmask_operator.api.spec import OUTSIDE_POD_TEMPLATE, READ_WHEN_PINNED, SCALE, Spec
from unmask_operator.objects import Obj


@dataclass(frozen=True)
class DiffusionLMService:
    """The resource as the operator works with it: metadata as it came, the spec with its defaults."""

    metadata: Mapping[str, Any]
    spec: Spec  # without what is `ignored` and `unread`
    ignored: tuple[str, ...] = ()  # fields that this operator does not know, as those of a newer CRD
    unread: Mapping[str, SpecError] = field(default_factory=dict)  # sections with a value that it does not know

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

    A null means that the field is not set. Namespace and uid, which every object of an API server has, are "default"
    and "" without.

    Args:
        runs: a value of a section beside the pods that this operator does not know is no mistake but another version's:
            what there is of that section can be left alone.
        pods_are_pinned: it runs, and only the sections of READ_WHEN_PINNED have a say in what is rendered: what is
            wrong in the others is no matter.
    """
    metadata: Obj = {"namespace": "default", "uid": "", **obj["metadata"]}
    asked: Any = obj.get("spec")
    if isinstance(asked, Mapping):
        asked = without_nulls(asked)
    try:
        return DiffusionLMService(metadata, Spec.model_validate(asked))
    except ValidationError as error:
        unknown = [wrong["loc"] for wrong in error.errors(include_url=False) if wrong["type"] == "extra_forbidden"]
    unread: dict[str, SpecError] = {}
    if pods_are_pinned and isinstance(asked, Mapping):
        asked = {"model": {"uri": "demo://"}, **{name: asked[name] for name in asked if name in READ_WHEN_PINNED}}
    try:
        spec = Spec.model_validate(asked, extra="ignore")
    except ValidationError as error:
        unread = spec_errors(error, "spec")
        other = READ_WHEN_PINNED if pods_are_pinned else OUTSIDE_POD_TEMPLATE if runs else frozenset()
        if unread.keys() - (other - SCALE):
            raise next(iter(unread.values())) from None
        read = {name: value for name, value in asked.items() if name not in unread}
        spec = Spec.model_validate(read, extra="ignore")
    return DiffusionLMService(metadata, spec, tuple(field_path("spec", location) for location in unknown), unread)

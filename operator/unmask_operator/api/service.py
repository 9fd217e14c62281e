"""Converts a DiffusionLMService from the API server's JSON to typed data."""

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
    """A parsed resource.

    Attributes:
        metadata: as received.
        spec: typed and with defaults, without the `ignored` fields and the `unread` sections.
        ignored: paths of fields that this operator does not know, such as those of a newer CRD.
        unread: errors by section, for sections with a value that this operator does not support.
    """

    metadata: Mapping[str, Any]
    spec: Spec
    ignored: tuple[str, ...] = ()
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
        """Model id for requests."""
        return self.spec.model.name or self.name


def parse(obj: Mapping[str, Any], *, runs: bool = False, pods_are_pinned: bool = False) -> DiffusionLMService:
    """Parses a resource.

    A null means that the field is not set. A missing namespace becomes "default" and a missing uid "".

    Args:
        obj: the API server's JSON.
        runs: the resource has pods. An invalid section that is not part of the pod template is then listed in `unread`
            instead of being an error: another version of the operator may have accepted it.
        pods_are_pinned: the pods of a recorded revision stay unchanged. Only sections in READ_WHEN_PINNED are then
            parsed, and an invalid one is listed in `unread`.

    Raises:
        SpecError: the spec is invalid; names the first invalid field.
    """
    metadata: Obj = {"namespace": "default", "uid": "", **obj["metadata"]}
    spec_data: Any = obj.get("spec")
    if isinstance(spec_data, Mapping):
        spec_data = without_nulls(spec_data)
    try:
        return DiffusionLMService(metadata, Spec.model_validate(spec_data))
    except ValidationError as error:
        unknown = [wrong["loc"] for wrong in error.errors(include_url=False) if wrong["type"] == "extra_forbidden"]
    unread: dict[str, SpecError] = {}
    if pods_are_pinned and isinstance(spec_data, Mapping):
        spec_data = {
            "model": {"uri": "demo://"},
            **{name: spec_data[name] for name in spec_data if name in READ_WHEN_PINNED},
        }
    try:
        spec = Spec.model_validate(spec_data, extra="ignore")
    except ValidationError as error:
        unread = spec_errors(error, "spec")
        other = READ_WHEN_PINNED if pods_are_pinned else OUTSIDE_POD_TEMPLATE if runs else frozenset()
        if unread.keys() - (other - SCALE):
            raise next(iter(unread.values())) from None
        read = {name: value for name, value in spec_data.items() if name not in unread}
        spec = Spec.model_validate(read, extra="ignore")
    return DiffusionLMService(metadata, spec, tuple(field_path("spec", location) for location in unknown), unread)

"""Converts a DiffusionLMService from the API server's JSON to typed data, or names its first invalid field."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from unmask_operator.api.base import WRONG
from unmask_operator.api.spec import OUTSIDE_POD_TEMPLATE, READ_WHEN_PINNED, SCALE, Spec
from unmask_operator.objects import Obj

# Members of podTemplate in which null deletes a rendered value.
_KEEPS_NULLS = ("metadata", "spec")
SELECTOR = "matchLabels"  # removing an entry would select more objects, so the schema rejects nulls here


class SpecError(ValueError):
    """The spec is invalid.

    Attributes:
        field: path from the root of the resource, such as "spec.engine.pageSize".
        message: the error and the fix; completes "FIELD: ...".
    """

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}" if field else message)
        self.field = field
        self.message = message


@dataclass(frozen=True)
class DiffusionLMService:
    """A parsed resource.

    Attributes:
        metadata: as received.
        spec: typed and with defaults, without the `ignored` fields and the `unread` sections.
        ignored: paths of fields that this operator does not know, such as those of a newer CRD.
        unread: errors by section, for sections with a value that this operator does not support.
        commit: commit of the model on the claim of spec.modelCache.pvc; "" without one.
    """

    metadata: Mapping[str, Any]
    spec: Spec
    ignored: tuple[str, ...] = ()
    unread: Mapping[str, SpecError] = field(default_factory=dict)
    commit: str = ""

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
        unread = _spec_errors(error, "spec")
        other = READ_WHEN_PINNED if pods_are_pinned else OUTSIDE_POD_TEMPLATE if runs else frozenset()
        if unread.keys() - (other - SCALE):
            raise next(iter(unread.values())) from None
        read = {name: value for name, value in spec_data.items() if name not in unread}
        spec = Spec.model_validate(read, extra="ignore")
    return DiffusionLMService(metadata, spec, tuple(_field_path("spec", location) for location in unknown), unread)


def _field_path(root: str, location: Iterable[int | str]) -> str:
    """Formats a path below `root`, such as spec.imagePullSecrets[0].name."""
    return root + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)


def _spec_errors(error: ValidationError, root: str) -> dict[str, SpecError]:
    """Returns the first validation error of each member of `root` ("spec").

    The API server validates the same bounds. These errors occur only if the CustomResourceDefinition has another
    version.
    """
    found: dict[str, SpecError] = {}
    for wrong in error.errors(include_url=False):
        path, sentence = _field_path(root, wrong["loc"]), wrong["msg"][:1].lower() + wrong["msg"][1:]
        shown = repr(wrong["input"])
        if wrong["type"] not in ("missing", WRONG):
            sentence = f"{sentence}, and not {shown if len(shown) <= 80 else shown[:77] + '...'}"
        found.setdefault(str(wrong["loc"][0]) if wrong["loc"] else "", SpecError(path, sentence))
    return found


def without_nulls(spec: Mapping[str, Any]) -> Obj:
    """Returns a spec without the fields and map entries that are null.

    Nulls in podTemplate's metadata and spec remain, since they delete rendered values. Null entries of lists and label
    selectors remain too; the schema rejects them.
    """
    made: Obj = _without(spec)
    template = spec.get("podTemplate")
    if isinstance(template, Mapping):
        made["podTemplate"] |= {member: template[member] for member in _KEEPS_NULLS if template.get(member) is not None}
    return made


def _without(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {
            member: inner if member == SELECTOR else _without(inner)
            for member, inner in value.items()
            if inner is not None
        }
    return [_without(entry) for entry in value] if isinstance(value, list) else value

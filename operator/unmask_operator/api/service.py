"""A whole DiffusionLMService, from the API server's JSON to typed data."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from unmask_operator.api.base import Rule
from unmask_operator.api.errors import SpecError, spec_error
from unmask_operator.api.spec import Spec
from unmask_operator.objects import API_VERSION, KIND

NAME = r"^[a-z]([-a-z0-9]{0,38}[a-z0-9])?$"
NAME_RULE = Rule(
    f"self.metadata.name.matches('{NAME}')",
    lambda name: re.fullmatch(NAME, name) is not None,
    "metadata.name must be at most 40 characters out of a-z, 0-9 and -, beginning with a letter and not ending with -: "
    "it names a Service",
)


@dataclass(frozen=True)
class DiffusionLMService:
    """The resource as the operator works with it: metadata as it came, the spec with its defaults."""

    metadata: Mapping[str, Any]
    spec: Spec

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
    def generation(self) -> int:
        return int(self.metadata.get("generation", 0))

    @property
    def annotations(self) -> Mapping[str, str]:
        return self.metadata.get("annotations") or {}

    @property
    def model_name(self) -> str:
        """The id under which clients ask for the model."""
        return self.spec.model.name or self.name


def parse(obj: Mapping[str, Any]) -> DiffusionLMService:
    """The typed resource. SpecError names the first field that is wrong, whatever `obj` holds.

    metadata needs a name; namespace and uid, which every object of an API server has, are "default" and "" without.
    """
    if not isinstance(obj, Mapping) or (obj.get("apiVersion"), obj.get("kind")) != (API_VERSION, KIND):
        raise SpecError("", f"not a {KIND} of {API_VERSION}")
    metadata = obj.get("metadata")
    if not isinstance(metadata, Mapping) or not isinstance(metadata.get("name"), str):
        raise SpecError("metadata.name", "is missing; it is required")
    if not NAME_RULE.check(metadata["name"]):
        raise SpecError("metadata.name", NAME_RULE.message.removeprefix("metadata.name "))
    if "spec" not in obj:
        raise SpecError("spec", "is missing; it is required")
    try:
        spec = Spec.model_validate(obj["spec"])
    except ValidationError as error:
        raise spec_error(error, "spec") from None
    return DiffusionLMService({"namespace": "default", "uid": ""} | dict(metadata), spec)

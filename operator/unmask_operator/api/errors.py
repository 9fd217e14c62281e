"""What is wrong with a resource, as one sentence that names the field."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pydantic import ValidationError


class SpecError(ValueError):
    """The resource cannot be served as written.

    Attributes:
        field: path from the resource's root, such as "spec.engine.pageSize".
        message: what is wrong and the fix, completing "FIELD: ...".
    """

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}" if field else message)
        self.field = field
        self.message = message


_SENTENCES = {
    "missing": "is missing; it is required",
    "bool_type": "{shown} is not true or false",
    "int_type": "{shown} is not a whole number",
    "float_type": "{shown} is not a number",
    "finite_number": "{shown} is not a finite number",
    "string_type": "{shown} is not text; quote it",
    "list_type": "{shown} is not a list",
    "dict_type": "{shown} is not a map",
    "model_type": "{shown} is not a map of fields",
    "model_attributes_type": "{shown} is not a map of fields",
    "greater_than": "{shown} must be above {gt}",
    "greater_than_equal": "{shown} must be at least {ge}",
    "less_than": "{shown} must be below {lt}",
    "less_than_equal": "{shown} must be at most {le}",
    "literal_error": "{shown} must be one of {expected}",
    "string_pattern_mismatch": "{shown} does not match {pattern}",
    "string_too_short": "must have at least {min_length} characters",
    "string_too_long": "has more than {max_length} characters",
    "too_short": "needs at least {min_length} entries",
    "too_long": "has more than {max_length} entries",
}


def field_path(root: str, place: Iterable[int | str]) -> str:
    """A place below `root` as people write it: spec.imagePullSecrets[0].name."""
    return root + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place)


def spec_error(error: ValidationError, root: str) -> SpecError:
    """The first mistake that pydantic found below `root` ("spec")."""
    first = error.errors(include_url=False)[0]
    context: dict[str, Any] = first.get("ctx", {})
    path = field_path(root, (*first["loc"], *filter(None, [context.get("field")])))
    sentence = _SENTENCES.get(first["type"])
    shown = repr(first["input"])
    shown = shown if len(shown) <= 80 else shown[:77] + "..."
    return SpecError(path, sentence.format(shown=shown, **context) if sentence else first["msg"])

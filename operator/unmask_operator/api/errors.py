"""Validation errors of a resource. Each names the field."""

from collections.abc import Iterable

from pydantic import ValidationError

WRONG = "wrong"  # type of an error whose message needs no input value appended


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


def field_path(root: str, location: Iterable[int | str]) -> str:
    """Formats a path below `root`, such as spec.imagePullSecrets[0].name."""
    return root + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)


def spec_errors(error: ValidationError, root: str) -> dict[str, SpecError]:
    """Returns the first validation error of each member of `root` ("spec").

    The API server validates the same bounds. These errors occur only if the CustomResourceDefinition has another
    version.
    """
    found: dict[str, SpecError] = {}
    for wrong in error.errors(include_url=False):
        path, sentence = field_path(root, wrong["loc"]), wrong["msg"][:1].lower() + wrong["msg"][1:]
        shown = repr(wrong["input"])
        if wrong["type"] not in ("missing", WRONG):
            sentence = f"{sentence}, and not {shown if len(shown) <= 80 else shown[:77] + '...'}"
        found.setdefault(str(wrong["loc"][0]) if wrong["loc"] else "", SpecError(path, sentence))
    return found

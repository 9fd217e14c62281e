"""What is wrong with a resource, as one sentence that names the field."""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import ValidationError

WRONG = "wrong"  # type of an error whose message says everything


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


def field_path(root: str, place: Iterable[int | str]) -> str:
    """A place below `root` as people write it: spec.imagePullSecrets[0].name."""
    return root + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place)


def spec_error(error: ValidationError, root: str) -> SpecError:
    """The first mistake that pydantic found below `root` ("spec"). The API server keeps the same bounds and says so in
    its own words: this is for what a CustomResourceDefinition of another version let through."""
    first = error.errors(include_url=False)[0]
    path, sentence = field_path(root, first["loc"]), first["msg"][:1].lower() + first["msg"][1:]
    shown = repr(first["input"])
    if first["type"] not in ("missing", WRONG):
        sentence = f"{sentence}, and not {shown if len(shown) <= 80 else shown[:77] + '...'}"
    return SpecError(path, sentence)

"""What is wrong with a resource, as one sentence that names the field."""

from collections.abc import Iterable

from pydantic import ValidationError

WRONG = "wrong"  # type of an error whose message says everything


class SpecError(ValueError):
    """The resource cannot be served as written."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}" if field else message)
        self.field = field  # path from the resource's root, such as "spec.engine.pageSize"
        self.message = message  # what is wrong and the fix, completing "FIELD: ..."


def field_path(root: str, location: Iterable[int | str]) -> str:
    """A place below `root` as people write it: spec.imagePullSecrets[0].name."""
    return root + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)


def spec_errors(error: ValidationError, root: str) -> dict[str, SpecError]:
    """The first mistake that pydantic found in each member of `root` ("spec"). The API server keeps the same bounds and
    says so in its own words: this is for what a CustomResourceDefinition of another version let through."""
    found: dict[str, SpecError] = {}
    for wrong in error.errors(include_url=False):
        path, sentence = field_path(root, wrong["loc"]), wrong["msg"][:1].lower() + wrong["msg"][1:]
        shown = repr(wrong["input"])
        if wrong["type"] not in ("missing", WRONG):
            sentence = f"{sentence}, and not {shown if len(shown) <= 80 else shown[:77] + '...'}"
        found.setdefault(str(wrong["loc"][0]) if wrong["loc"] else "", SpecError(path, sentence))
    return found

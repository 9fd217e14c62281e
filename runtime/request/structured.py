"""Converts `structured_outputs` of a request to the text that the grammar engine reads.

The functions are pure. ``runtime.structured_output`` compiles the grammar, and rejects invalid ones.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from runtime.errors import RequestError
from runtime.request.validation import preview, refuse

FIELD = "structured_outputs"
FORMS = ("json", "json_object", "regex", "choice", "grammar")
# Fields that the client of vLLM always sends; false has no effect.
_SWITCHES = ("disable_fallback", "disable_any_whitespace", "disable_additional_properties")
MAX_CHARS = 2**16  # maximum length of a grammar as text
MAX_CHOICES = 1024
# Keys of parts that are translated before the engine reads the grammar (``runtime.structured_output.gbnf``).
GBNF = "gbnf_grammar"
SCHEMA = "client_schema"
FIELD_PATH = "field_path"  # path of the request field with the schema of a part
MAX_ITEMS = "max_items"  # of arrays without a bound, in the schemas of all parts

# As `json.dumps` formats it. With free whitespace, few tokens are forced, and an uncertain model may generate spaces
# until max_tokens. A schema may override this under "x-guidance".
_SPACING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_MARKS = re.compile(r"[\\.+*?()|\[\]{}^$#&\-~/]")


def path_of(constraint: object, at: str) -> str:
    """Returns the path for errors of a constraint: that of its form, or the name that the client used for the field."""
    forms = [form for form in FORMS if isinstance(constraint, Mapping) and constraint.get(form) is not None]
    return f"{at}.{forms[0]}" if at == FIELD and forms else at


def grammar_of(constraint: object, at: str) -> str:
    """Returns the grammar of a constraint as text for ``llguidance``.

    Args:
        constraint: ``{"json": ...}`` or another of `FORMS`.
        at: field for error messages.

    Raises:
        RequestError: the constraint is invalid.
    """
    if not isinstance(constraint, Mapping):
        raise refuse(at, f"{preview(constraint)} is not an object with one of {', '.join(FORMS)}")
    forms = {name: value for name, value in constraint.items() if value is not None}
    for name in ("json_object", *_SWITCHES):
        if forms.get(name) is False:
            del forms[name]
    unknown = [name for name in forms if name not in FORMS]
    if unknown:
        raise RequestError(
            f"{at}: {preview(unknown[0])} is not a constraint; use one of {', '.join(FORMS)}",
            param=f"{at}.{unknown[0]}" if isinstance(unknown[0], str) and len(unknown[0]) < 60 else at,
            code="unknown_field",
        )
    if len(forms) != 1:
        raise refuse(at, f"give one of {', '.join(FORMS)}")
    ((form, value),) = forms.items()
    param = path_of(constraint, at)
    check_length(value, param)
    text = _FORMS[form](value, param)
    if len(text) > MAX_CHARS:
        raise refuse(param, f"has {len(text)} characters; at most {MAX_CHARS}")
    return text


def with_max_items(grammar: str, max_items: int) -> str:
    """Adds the bound of arrays to a grammar with schemas, which is serialized with `grammars` as its only key."""
    return f'{grammar[:-1]}, "{MAX_ITEMS}": {max_items}}}' if SCHEMA in grammar else grammar


def check_length(value: object, param: str) -> int:
    """Returns the total length of the strings and names in a value, plus one per value.

    This check comes first, so that the event loop of the server does not escape or serialize megabytes.

    Raises:
        RequestError: `param` is longer than a grammar may be.
    """
    total = values = 0
    pending = [value]
    while pending and values <= MAX_CHARS:
        found = pending.pop()
        values += 1
        if isinstance(found, str):
            total += len(found)
        elif isinstance(found, Mapping):
            total += sum(len(name) for name in found if isinstance(name, str))
            pending += found.values()
        elif isinstance(found, list | tuple):
            pending += found
    if total + values > MAX_CHARS:
        raise refuse(param, f"has {total + values + len(pending)} characters; at most {MAX_CHARS}")
    return total + values


def _json(value: object, param: str) -> str:
    schema = value
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except (ValueError, RecursionError):
            raise refuse(param, "is not readable JSON; give the schema as an object") from None
    if isinstance(schema, bool):
        schema = {} if schema else {"enum": []}
    if not isinstance(schema, Mapping):
        raise refuse(param, f"{preview(value)} is not a JSON schema (an object)")
    own = schema.get("x-guidance")
    spacing = {**_SPACING, **own} if isinstance(own, Mapping) else _SPACING
    # lenient would allow outputs that do not match the schema
    return _text({SCHEMA: {**schema, "x-guidance": {**spacing, "lenient": False}}}, param)


def _any_object(value: object, param: str) -> str:
    if value is not True:
        raise refuse(param, f"{preview(value)} is not true")
    return _json({"type": "object"}, param)


def _regex(value: object, param: str) -> str:
    if not isinstance(value, str) or not value:
        raise refuse(param, f"{preview(value)} is not a regular expression")
    # the expression matches the complete output, so anchors at its ends have no effect
    inner = value.removeprefix("^")
    if inner.endswith("$") and not inner.endswith("\\$"):
        inner = inner[:-1]
    slashes = re.sub(r"(?<!\\)((?:\\\\)*)/", r"\1\\/", inner)
    return _text({"lark_grammar": f"start: /{slashes}/"}, param)


def _choice(value: object, param: str) -> str:
    if isinstance(value, list | tuple) and len(value) > MAX_CHOICES:
        raise refuse(param, f"has {len(value)} texts; at most {MAX_CHOICES}")
    if not isinstance(value, list | tuple) or not value or not all(isinstance(v, str) and v for v in value):
        raise refuse(param, "must be a list of texts, none of them empty")
    return _regex("|".join(_MARKS.sub(r"\\\g<0>", text) for text in value), param)


def _grammar(value: object, param: str) -> str:
    """Returns a grammar in Lark's notation, or unchanged in that of GBNF and EBNF, which have ``::=``.

    The compiler translates these (``runtime.structured_output.gbnf``), because it may take long.
    """
    if not isinstance(value, str) or not value.strip():
        raise refuse(param, f"{preview(value)} is not a grammar")
    return _text({GBNF if "::=" in value else "lark_grammar": value}, param)


def _text(grammar: dict[str, Any], param: str) -> str:
    try:
        text = json.dumps({"grammars": [grammar]}, ensure_ascii=False)
        text.encode()
    except (UnicodeEncodeError, ValueError, TypeError, RecursionError):
        raise refuse(param, "cannot be serialized as JSON: it has a lone surrogate, or is nested too deeply") from None
    return text


_FORMS = {"json": _json, "json_object": _any_object, "regex": _regex, "choice": _choice, "grammar": _grammar}

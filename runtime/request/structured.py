"""What a request may ask of its answer's form, as the one text that the grammar engine reads. Pure; the grammar itself
is compiled, and refused where it is wrong, by ``runtime.structured_output``."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from runtime.errors import RequestError
from runtime.request.validation import refuse, shown

FIELD = "structured_outputs"
FORMS = ("json", "json_object", "regex", "choice", "grammar")
# What vLLM's client writes beside a form though nobody asked for it; false asks for nothing.
_SWITCHES = ("disable_fallback", "disable_any_whitespace", "disable_additional_properties")
MAX_CHARS = 2**16  # of a grammar as it is handed to the engine
MAX_CHOICES = 1024
# Keys of a grammar's parts that are translated before the engine reads it (``runtime.structured_output.gbnf``).
GBNF = "gbnf_grammar"
SCHEMA = "client_schema"
FIELD_PATH = "field_path"  # of the request's field that holds a part's schema

# As `json.dumps` writes it: with free whitespace hardly anything is forced, and a model that is at a loss writes spaces
# until its tokens end. A schema may say otherwise under "x-guidance".
_SPACING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_MARKS = re.compile(r"[\\.+*?()|\[\]{}^$#&\-~/]")


def path_of(asked: object, at: str) -> str:
    """What a refusal of the form itself names: the form, or the field under whose name the form went."""
    forms = [form for form in FORMS if isinstance(asked, Mapping) and asked.get(form) is not None]
    return f"{at}.{forms[0]}" if at == FIELD and forms else at


def grammar_of(asked: object, at: str) -> str:
    """The grammar that `asked` (``{"json": ...}`` or another of `FORMS`) stands for, for ``llguidance``.

    Raises RequestError naming the field.
    """
    if not isinstance(asked, Mapping):
        raise refuse(at, f"{shown(asked)} is not an object with one of {', '.join(FORMS)}")
    given = {name: value for name, value in asked.items() if value is not None}
    for name in ("json_object", *_SWITCHES):
        if given.get(name) is False:
            del given[name]
    unknown = [name for name in given if name not in FORMS]
    if unknown:
        raise RequestError(
            f"{at}: {shown(unknown[0])} is no form of an answer; there are {', '.join(FORMS)}",
            param=f"{at}.{unknown[0]}" if isinstance(unknown[0], str) and len(unknown[0]) < 60 else at,
            code="unknown_field",
        )
    if len(given) != 1:
        raise refuse(at, f"give one of {', '.join(FORMS)}")
    ((form, value),) = given.items()
    param = path_of(asked, at)
    check_length(value, param)
    text = _FORMS[form](value, param)
    if len(text) > MAX_CHARS:
        raise refuse(param, f"has {len(text)} characters; at most {MAX_CHARS}")
    return text


def check_length(value: object, param: str) -> int:
    """The summed lengths of the texts and names within a value, and one for each value. Nothing else is made of a
    value before: a server's event loop must not escape or write megabytes.

    Raises:
        RequestError: About `param`: it is longer than a grammar may be.
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
        raise refuse(param, f"{shown(value)} is not a JSON schema (an object)")
    own = schema.get("x-guidance")
    spacing = {**_SPACING, **own} if isinstance(own, Mapping) else _SPACING
    # lenient is what would let through answers that do not fit
    return _text({SCHEMA: {**schema, "x-guidance": {**spacing, "lenient": False}}}, param)


def _any_object(value: object, param: str) -> str:
    if value is not True:
        raise refuse(param, f"{shown(value)} is not true")
    return _json({"type": "object"}, param)


def _regex(value: object, param: str) -> str:
    if not isinstance(value, str) or not value:
        raise refuse(param, f"{shown(value)} is not a regular expression")
    # the whole of an answer matches: anchors at its ends say what holds anyway
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
    """Lark's notation as the engine has it; that of GBNF and EBNF, by their ``::=``, goes as it is: translating may
    take long, and is done where grammars are compiled (``runtime.structured_output.gbnf``)."""
    if not isinstance(value, str) or not value.strip():
        raise refuse(param, f"{shown(value)} is not a grammar")
    return _text({GBNF if "::=" in value else "lark_grammar": value}, param)


def _text(grammar: dict[str, Any], param: str) -> str:
    return _written({"grammars": [grammar]}, param)


def _written(value: Mapping[str, Any], param: str) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False)
        text.encode()
    except (UnicodeEncodeError, ValueError, TypeError, RecursionError):
        raise refuse(param, "is no JSON that can be written down: a lone surrogate, or nested too deeply") from None
    return text


_FORMS = {"json": _json, "json_object": _any_object, "regex": _regex, "choice": _choice, "grammar": _grammar}

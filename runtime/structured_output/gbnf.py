"""Translates notations of clients to that of llguidance: GBNF, JSON schemas with all their keywords, names of tokens.

This happens where a grammar is compiled, and in its check under a limit of CPU time. `request/structured.py` runs on a
server's event loop, where 64 KiB of GBNF would take seconds.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from runtime.request.structured import FIELD_PATH, GBNF, MAX_CHARS, MAX_ITEMS, SCHEMA
from runtime.request.validation import preview
from runtime.structured_output.bounds import bound_values, largest
from runtime.structured_output.json_schema import OVERLAP, remaining_one_of, simplify_schema
from runtime.structured_output.patterns import Unsupported

# llguidance does not tokenize forced text: a model may have one token for a colon and the space behind it.
_UNFORCED = '%llguidance {"no_forcing": true}'
_ESCAPES = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|.)")  # of GBNF
_ONE_OF = "'coerce_one_of'"  # part of the library's error for a oneOf
# Names of special tokens have a random part, so that no text of a client is encoded as one.
_NAME_PART = secrets.token_hex(8)
# Texts, comments, expressions and names of special tokens in Lark. The first three may lack an end, so that the time to
# find them is linear.
_LARK_NAMES = re.compile(
    r'"(?:\\.?|[^"\\])*(?:"|\Z)|(?:#|//)[^\n]*|/(?:\\.?|[^/\\])+(?:/|\Z)|(<(?!\[[^<>\s]*\]>)[^<>\s]+>)', re.DOTALL
)

_SUFFIX = re.compile(r'\[suffix=("(?:[^"\\]|\\["\\/bfnrt])*")\]')


def translate_grammar(text: str) -> str:
    """Translates the parts of a grammar to llguidance's notation.

    Raises:
        ValueError: A part cannot be translated; the message says why.
    """
    if GBNF not in text and SCHEMA not in text and "<" not in text:
        return text
    grammar = json.loads(text)
    parts = [_translated(part, grammar.get(MAX_ITEMS)) for part in grammar["grammars"]]
    return json.dumps({"grammars": parts}, ensure_ascii=False)


@dataclass(frozen=True)
class GrammarTraits:
    """What the end of an output depends on, besides the compiled grammar.

    Attributes:
        longest_string: Largest bound of a string's length in its schemas, 0 if none; None without schemas.
        reserve: Tokens that suffice to end an output, whatever it begins next; None: unknown.
        suffixes: Texts that end free texts.
    """

    longest_string: int | None = None
    reserve: int | None = None
    suffixes: tuple[str, ...] = ()


def traits(text: str) -> GrammarTraits:
    """Returns the traits of a grammar."""
    parts = json.loads(text)["grammars"]
    found = [end for part in parts for end in _SUFFIX.findall(part.get("lark_grammar", ""))]
    suffixes = tuple(json.loads(end, strict=False) for end in reversed(found))  # that of a thought comes last
    schemas = [part[SCHEMA] for part in parts if SCHEMA in part]
    if not schemas:
        return GrammarTraits(suffixes=suffixes)
    # Names and constants of a value are in the text. Repeated ones count again, at two levels of arrays.
    repeated = largest(schemas, ("minItems", "minProperties"))
    reserve = len(text.encode()) * max(1, repeated) ** 2 + largest(schemas, ("minLength",))
    return GrammarTraits(largest(schemas, ("maxLength", "minLength")), reserve, suffixes)


def separate_parts(text: str) -> list[tuple[str, str, str]]:
    """Returns name, path of the field, and grammar of each part that is a schema of a request's field."""
    found = []
    grammar = json.loads(text)
    for part in grammar["grammars"]:
        if FIELD_PATH in part:
            alone = {name: value for name, value in part.items() if name not in ("name", FIELD_PATH)}
            one = json.dumps({**grammar, "grammars": [alone]}, ensure_ascii=False)
            found.append((part["name"], part[FIELD_PATH], one))
    return found


Refused = tuple[str, str, bool]  # name of a part, why it is refused on its own, and whether its schema is wrong


@dataclass(frozen=True)
class CheckResult:
    """Result of checking a grammar. It is a dataclass because benchmark machines do not have msgspec.

    Attributes:
        reason: Why the grammar cannot be used, with the path of the first part that is refused; "" if it can.
        parts: Names of the grammar's parts whose schemas are valid but not supported; () if `wrong`.
        wrong: Whether one of the grammar's schemas is invalid, or matches no value.
        large: Whether the process of the check has grown so much that the next grammar needs a new one.
        witness: A short output, as token ids without an EOS; None if none was found.
    """

    reason: str = ""
    parts: tuple[str, ...] = ()
    wrong: bool = False
    large: bool = False
    witness: tuple[int, ...] | None = None

    @classmethod
    def of_refused(cls, reason: str, refused: Sequence[Refused]) -> CheckResult:
        """Returns the result of a grammar that is refused for `reason`, or for that of its first refused part."""
        wrong = any(wrong for _, _, wrong in refused)
        return cls(refused[0][1] if refused else reason, () if wrong else tuple(name for name, *_ in refused), wrong)


def untranslatable_parts(text: str) -> list[Refused]:
    """Finds the parts of a grammar that cannot be translated. Nothing is compiled."""
    refused = []
    for name, path, alone in separate_parts(text):
        try:
            translate_grammar(alone)
        except ValueError as error:
            refused.append((name, f"{path}: {error}", not isinstance(error, Unsupported)))
    return refused


def explain(text: str, error: str) -> str:
    """Returns the library's error; for a ``oneOf`` with the path and possible fixes instead."""
    error = error.replace(_NAME_PART, "")
    if _ONE_OF not in error:
        return error
    paths = [path for part in json.loads(text)["grammars"] if SCHEMA in part for path in remaining_one_of(part[SCHEMA])]
    where = " or ".join(paths[:3]) + (f" or {len(paths) - 3} more" if len(paths) > 3 else "")
    return f"{where}: {OVERLAP}"


def token_name(text: str) -> str:
    """Returns the name of a special token in llguidance's tokenizer."""
    return f"{text[:-1]}{_NAME_PART}{text[-1:]}"


def _translated(part: dict[str, Any], max_items: int | None) -> dict[str, Any]:
    base = {name: value for name, value in part.items() if name not in (GBNF, SCHEMA, FIELD_PATH)}
    if GBNF in part:
        return base | {"lark_grammar": _with_token_names(_from_gbnf(part[GBNF]))}
    if SCHEMA in part:
        try:
            schema = simplify_schema(part[SCHEMA])
            if max_items is not None:
                schema = bound_values(schema, max_items)
        except RecursionError:
            raise ValueError("its schemas are nested too deeply; use fewer levels") from None
        return base | {"lark_grammar": f"{_UNFORCED}\nstart: %json {json.dumps(schema, ensure_ascii=False)}"}
    return base | {"lark_grammar": _with_token_names(part["lark_grammar"])}


def _with_token_names(lark: str) -> str:
    """Renames the special tokens that a grammar refers to by ``<name>``."""
    return _LARK_NAMES.sub(lambda found: token_name(found[1]) if found[1] else found[0], lark)


def _unescaped(escape: re.Match[str]) -> str:
    """Returns the character of an escape with `u` or `U`; the library drops their leading zeros. Others stay."""
    number = int(escape[1] or escape[2] or "0", 16)
    if 0xD800 <= number < 0xE000 or number > 0x10FFFF or not number:
        return escape[0]
    return chr(number) if number > 0x7F else f"\\x{number:02x}"


def _from_gbnf(grammar: str) -> str:
    from llguidance.gbnf_to_lark import any_to_lark

    try:
        lark = any_to_lark(_ESCAPES.sub(_unescaped, grammar))
    except Exception as error:
        raise ValueError(f"it is not a readable grammar: {preview(str(error))}") from None
    if len(lark) > MAX_CHARS:
        raise ValueError(f"it has {len(lark)} characters in Lark's notation, at most {MAX_CHARS}; send a smaller one")
    return lark

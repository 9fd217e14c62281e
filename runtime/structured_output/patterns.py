"""Rewrites regular expressions of JSON schemas from ECMAScript's syntax to that of llguidance.

A schema's ``pattern`` is an ECMAScript expression (JSON Schema core, 6.4; ECMA-262, 22.2). llguidance reads the syntax
of Rust's ``regex`` crate. Some expressions are valid in both and match different texts, so they are rewritten.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from runtime.structured_output.formats import FORMATS, NAME_FORMATS

# Published expressions with look-ahead (of zod and pydantic), and those without it that match the same texts.
_EMAIL = r"^(?:[A-Za-z0-9_'+\-]+\.)*[A-Za-z0-9_'+\-]*[A-Za-z0-9_+\-]@(?:[A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$"
_DATE_PART = r"(?:\d+Y(?:\d+M)?(?:\d+D)?|\d+M(?:\d+D)?|\d+D)"
_SECONDS = r"\d+(?:[.,]\d+)?S"
_TIME_PART = rf"T(?:\d+H(?:\d+M)?(?:{_SECONDS})?|\d+M(?:{_SECONDS})?|{_SECONDS})"
_LABELS = r"^[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?(?:\.[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?)*"
_EMOJI_BASE = r"\p{Extended_Pictographic}\p{Regional_Indicator}\u20E3"
_EMOJI = r"\p{Extended_Pictographic}\p{Emoji_Component}"
EQUIVALENTS = {
    r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$": _EMAIL,
    r"^(?!\.)(?!.*\.\.)([a-zA-Z0-9_'+\-\.]*)[a-zA-Z0-9_+-]@([a-zA-Z0-9][a-zA-Z0-9\-]*\.)+[a-zA-Z]{2,}$": _EMAIL,
    r"^P(?:(\d+W)|(?!.*W)(?=\d|T\d)(\d+Y)?(\d+M)?(\d+D)?(T(?=\d)(\d+H)?(\d+M)?(\d+([.,]\d+)?S)?)?)$": (
        rf"^P(?:\d+W|{_DATE_PART}(?:{_TIME_PART})?|{_TIME_PART})$"
    ),
    r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$": r"^[+-]?(?:\d+\.?\d*|\.\d+)$",
    rf"^(?=[\s\S]*[{_EMOJI_BASE}])[{_EMOJI}]+$": rf"^[{_EMOJI}]*[{_EMOJI_BASE}][{_EMOJI}]*$",
}
# An expression that also bounds the length, as alternatives with the largest length of each in characters.
BOUNDED = {
    r"^(?=.{1,253}\.?$)[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?(?:\.[a-zA-Z0-9](?:[-0-9a-zA-Z]{0,61}[0-9a-zA-Z])?)*\.?$": (  # noqa: E501
        (f"{_LABELS}$", 253),
        (rf"{_LABELS}\.$", 254),
    )
}

BASE64 = "^(?:[0-9A-Za-z+/]{4})*(?:[0-9A-Za-z+/]{2}==|[0-9A-Za-z+/]{3}=)?$"  # RFC 4648, section 4

# Expressions that zod 4 writes next to a `format`. In each pair, the second matches all texts of the first, so that the
# first suffices. A property name has one expression.
_ZOD_EMAIL = r"^(?:[A-Za-z0-9_'+\-]+\.)*[A-Za-z0-9_'+\-]*[A-Za-z0-9_+-]@(?:[A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$"
_ZOD_DATE = (
    r"(?:(?:\d\d[2468][048]|\d\d[13579][26]|\d\d0[48]|[02468][048]00|[13579][26]00)-02-29|\d{4}-(?:(?:0[13578]|1[02])-"
    r"(?:0[1-9]|[12]\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)|(?:02)-(?:0[1-9]|1\d|2[0-8])))"
)
_ZOD_TIME = r"(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d+)?"
_ZOD_ZONES = ("Z", r"Z|([+-](?:[01]\d|2[0-3]):[0-5]\d)")
_ZOD_BYTE = "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9][0-9]|[0-9])"
_ZOD_UUIDS = tuple(
    f"[0-9a-fA-F]{{8}}-[0-9a-fA-F]{{4}}-{third}-{fourth}-[0-9a-fA-F]{{12}}"
    for third, fourth in (
        ("[0-9a-fA-F]{4}", "[0-9a-fA-F]{4}"),
        *((f"{version}[0-9a-fA-F]{{3}}", "[89abAB][0-9a-fA-F]{3}") for version in ("[1-8]", *"12345678")),
    )
)
_ZOD_ZERO_UUID = "00000000-0000-0000-0000-000000000000"
_ZOD_UUID_ENDS = ("", f"|{_ZOD_ZERO_UUID}", f"|{_ZOD_ZERO_UUID}|ffffffff-ffff-ffff-ffff-ffffffffffff")
_NARROWER_AND_WIDER = frozenset(
    (
        *(
            (NAME_FORMATS["email"], wide)
            for wide in (_ZOD_EMAIL, *EQUIVALENTS)
            if EQUIVALENTS.get(wide, _EMAIL) == _EMAIL
        ),
        *((FORMATS["duration"], wide) for wide in EQUIVALENTS if wide.startswith("^P")),
        *((FORMATS["hostname"], wide) for wide in BOUNDED),
        (f"^{_ZOD_DATE}$", FORMATS["date"]),
        *((f"^{_ZOD_DATE}T(?:{_ZOD_TIME}(?:{zone}))$", FORMATS["date-time"]) for zone in _ZOD_ZONES),
        (rf"^(?:{_ZOD_BYTE}\.){{3}}{_ZOD_BYTE}$", FORMATS["ipv4"]),
        *((f"^({uuid}{end})$", FORMATS["uuid"]) for uuid in _ZOD_UUIDS for end in _ZOD_UUID_ENDS),
    )
)

_QUANTIFIER = re.compile(r"\{[0-9]+(?:,[0-9]*)?\}")
_GROUP = re.compile(r"\(\?(?::|P?<[A-Za-z_][A-Za-z0-9_]*>|[a-z-]+[:)])")
_AROUND = {"(?=": "look-ahead", "(?!": "look-ahead", "(?<=": "look-behind", "(?<!": "look-behind"}
_HEX = re.compile(r"x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|u\{[0-9A-Fa-f]{1,6}\}")
_PAIR = re.compile(r"u(d[89ab][0-9a-f]{2})\\u(d[c-f][0-9a-f]{2})", re.IGNORECASE)
_PROPERTY = re.compile(r"[pP](?:\{[A-Za-z_=]+\}|[A-Z])")
_META = frozenset("\\.+*?()|[]{}^$#&-~/")
_ANY = r"[\s\S]"
# Of a class with all control characters, llguidance accepts every JSON escape, even of a quote that the class excludes.
# Negated classes therefore exclude U+0000 too, and ranges begin at U+0001.
_NULS = (r"\x00", r"\u0000", r"\u{0}", "\0")
_NO_LINE_END = r"[^\n\r\u{2028}\u{2029}]"  # ECMAScript's dot; llguidance's excludes \n alone


class Unsupported(ValueError):
    """A valid part of a schema that llguidance cannot express."""


def to_engine(pattern: str) -> str:
    """Rewrites an ECMAScript expression to one of llguidance that matches the same texts.

    Raises:
        Unsupported: It needs what llguidance lacks, such as look-ahead.
        ValueError: It is not a regular expression.
    """
    pattern = EQUIVALENTS.get(pattern, pattern)
    written: list[str] = []
    at = 0
    dotall = False
    while at < len(pattern):
        character = pattern[at]
        if character == "\\":
            text, at = _escape(pattern, at + 1, in_class=False)
        elif character == "[":
            text, at = _class(pattern, at)
        elif character == "(":
            text, at = _group(pattern, at)
            dotall = dotall or (text.startswith("(?") and "s" in text.split("-")[0] and "<" not in text)
        elif character == "{" and (found := _QUANTIFIER.match(pattern, at)) and written:
            text, at = found[0], found.end()
        elif character in "{}]":
            text, at = f"\\{character}", at + 1
        else:
            text, at = (_NO_LINE_END if character == "." and not dotall else character), at + 1
        written.append(text)
    return "".join(written)


def matches(pattern: str, name: str) -> bool | None:
    """Returns whether a name contains a match; None if Python's ``re`` may disagree with ECMAScript."""
    to_engine(pattern)
    if not (name.isascii() and name.isprintable()):
        return None
    try:
        return re.search(EQUIVALENTS.get(pattern, pattern), name, re.ASCII) is not None
    except re.error:
        return None


# Times with seconds and an offset, as RFC 3339 requires, and those of zod's expressions without one of both.
_CLOCKS = ("12:30:45", *(f"12:30:45.{'1' * digits}" for digits in range(1, 10)))
_FULL_TIMES = tuple(clock + offset for clock in _CLOCKS for offset in ("Z", "+01:00"))
_SHORT_TIMES = (*_CLOCKS, *("12:30" + offset for offset in ("", "Z", "+01:00")))
_BEFORE_TIME = {"time": "", "date-time": "2024-02-29T"}


def excludes_format(pattern: str, format: object) -> bool:
    """Returns whether an expression matches only times that its `format` excludes: without seconds or an offset.

    RFC 3339 requires seconds and an offset. zod 4.0 writes such an expression next to the format for ``z.iso.time()``
    and for times without seconds, although no text fits both.
    """
    before = _BEFORE_TIME.get(str(format))
    if before is None:
        return False
    try:
        to_engine(pattern)
        found = re.compile(pattern, re.ASCII)
    except (ValueError, re.error):
        return False
    short, full = (any(found.search(before + time) for time in times) for times in (_SHORT_TIMES, _FULL_TIMES))
    return short and not full


def without_wider(patterns: Sequence[str]) -> list[str]:
    """Returns expressions without those that match all texts of another one. Only published pairs are known."""
    return [wide for wide in patterns if not any((each, wide) in _NARROWER_AND_WIDER for each in patterns)]


def _group(pattern: str, at: int) -> tuple[str, int]:
    """Returns the start of a group, and the offset behind it."""
    if not pattern.startswith("(?", at):
        return "(", at + 1
    for opening, kind in _AROUND.items():
        if pattern.startswith(opening, at):
            raise Unsupported(f"{kind} {opening}...) is not supported; write the expression without it")
    found = _GROUP.match(pattern, at)
    if found is None:
        raise ValueError(f"{pattern[at : at + 4]} does not begin a group; escape the parenthesis")
    return found[0], found.end()


_ANCHORS = {"A": "^", "Z": "$", "z": "$"}  # escapes of other dialects, and the anchors of ECMAScript


def _escape(pattern: str, at: int, *, in_class: bool) -> tuple[str, int]:
    """Rewrites the escape after a backslash; returns it and the offset behind it."""
    character = pattern[at : at + 1]
    if not character:
        raise ValueError("it ends with a backslash; leave the backslash out, or write two")
    if character == "0" and not pattern[at + 1 : at + 2].isdigit():
        return r"\x00", at + 1
    if character.isdigit() or pattern.startswith("k<", at):
        raise Unsupported(f"the back-reference \\{character} is not supported; write the expression without it")
    if character in "bB":
        if in_class and character == "b":
            return r"\x08", at + 1
        raise Unsupported(f"the word boundary \\{character} is not supported; write the expression without it")
    if character == "c" and pattern[at + 1 : at + 2].isalpha() and pattern[at + 1].isascii():
        return f"\\x{ord(pattern[at + 1]) % 32:02x}", at + 2
    if pair := _PAIR.match(pattern, at):
        high, low = (int(half, 16) for half in pair.groups())
        return f"\\u{{{0x10000 + ((high - 0xD800) << 10) + low - 0xDC00:x}}}", pair.end()
    for form in (_HEX, _PROPERTY):
        if found := form.match(pattern, at):
            negated = character == "P" and not in_class
            return f"[^\\p{found[0][1:]}{_NULS[0]}]" if negated else f"\\{found[0]}", found.end()
    if character in "dDwWsSnrtvf":
        return f"\\{character}", at + 1
    if character in _ANCHORS:
        raise ValueError(f"\\{character} is not an anchor of ECMAScript; write {_ANCHORS[character]}")
    if character.isascii() and character.isalpha():
        raise ValueError(f"\\{character} is not an escape of ECMAScript; write {character}")
    return (f"\\{character}" if character in _META else character), at + 1


def _class(pattern: str, at: int) -> tuple[str, int]:
    """Rewrites a character class; returns it and the offset behind it.

    Its members are escaped: llguidance has nested classes and set operators, ECMAScript does not.
    """
    if pattern.startswith("[^]", at):
        return _ANY, at + 3
    if pattern.startswith("[]", at):
        raise ValueError("[] matches nothing; name the characters")
    negated = pattern.startswith("[^", at)
    written = ["[^" if negated else "["]
    at += 1 + negated
    while True:
        if at >= len(pattern):
            raise ValueError("a class of characters has no closing bracket; add ], or escape [")
        if pattern[at] == "]":
            return "".join([*written, _NULS[0] if negated else "", "]"]), at + 1
        member, at = _member(pattern, at)
        written.append(member)
        if pattern.startswith("-", at) and not pattern.startswith("-]", at) and at + 1 < len(pattern):
            end, at = _member(pattern, at + 1)
            written[-1:] = [r"\x01" if member in _NULS and end not in _NULS else member, "-", end]


def _member(pattern: str, at: int) -> tuple[str, int]:
    if pattern[at] == "\\":
        return _escape(pattern, at + 1, in_class=True)
    return (f"\\{pattern[at]}" if pattern[at] in _META else pattern[at]), at + 1

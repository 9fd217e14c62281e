"""What the log says of a refused request: the field and the reason, with lengths in place of what the client wrote."""

from __future__ import annotations

import re

from runtime.errors import RequestError

# A quoted text that does not begin inside a word, as an apostrophe does. One that is cut off ends with the message.
_QUOTED = re.compile(
    r"""(?<!\w)(?:'(?:\\.|[^'\\])*(?:'|$)|"(?:\\.|[^"\\])*(?:"|$)|`[^`]*(?:`|$))""",
    re.DOTALL,
)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,39}(?:\[\d{1,6}\])*")


def redacted(error: RequestError) -> str:
    """The error's message as the log may have it.

    Quoted texts, the error's `detail` and parts of the field's path that are no plain names become their lengths.
    """
    message, field = error.message, ""
    if error.param and message.startswith(error.param):
        field, message = field_path(error.param), message[len(error.param) :]
    if error.detail:
        message = message.replace(error.detail, _length(error.detail))
    return field + _QUOTED.sub(lambda found: _length(found[0].strip("'\"`")), message)


def field_path(path: str) -> str:
    """A field's path without what a client may have written into it."""
    parts = path.split(".")
    if len(parts) > 16:
        return _length(path)
    return ".".join(part if _NAME.fullmatch(part) else _length(part) for part in parts)


def _length(text: str) -> str:
    return f"<{len(text)} characters>"

"""The status, reason and message of a condition."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from unmask_operator.status.limits import valid_reason, valid_text
from unmask_operator.status.messages import MESSAGES

LONGEST_MESSAGE = 1024  # characters; messages of other components may be long
NAMED = 4  # maximum number of fields, adapters or changes of pods in a message
LONGEST_REASON = 256  # characters of an invalid reason in a message


@dataclass(frozen=True)
class Condition:
    status: str  # "True", "False" or "Unknown"
    reason: str
    message: str  # for users; if the status is False it has the fix, where one is known


def true(reason: str, message: str | None = None, **values: object) -> Condition:
    """Returns a condition that is True. Without a message it has that of `MESSAGES`, with `values`."""
    return _condition("True", *_row(reason, message, values))


def false(reason: str, message: str | None = None, **values: object) -> Condition:
    """Returns a condition that is False, with the message on one line and cut to `LONGEST_MESSAGE`."""
    reason, text = _row(reason, message, values)
    return _condition("False", reason, sentence(text))


def unknown(reason: str, message: str | None = None, **values: object) -> Condition:
    """Returns a condition that is Unknown, with a message as `false` has it."""
    return replace(false(reason, message, **values), status="Unknown")


def _row(name: str, message: str | None, values: Mapping[str, object]) -> tuple[str, str]:
    """Returns the reason and the message. A row of `MESSAGES` has the name of a reason, or of a variant of it."""
    return (name.partition(", ")[0], MESSAGES[name].format(**values)) if message is None else (name, message)


def sentence(text: str) -> str:
    """Returns the text on one line, cut to `LONGEST_MESSAGE` characters."""
    return valid_text(" ".join(text.split()), LONGEST_MESSAGE)


def few(names: Sequence[str], separator: str = ", ") -> str:
    """Joins the first `NAMED` names and adds the number of the others."""
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return separator.join(names[:NAMED]) + more


def _condition(status: str, reason: str, message: str) -> Condition:
    """Replaces an invalid reason by a valid one, and adds the original reason to the message."""
    valid = valid_reason(reason)
    original = " ".join(reason.split())
    if valid == reason or original in message:
        return Condition(status, valid, message)
    original = f" ({valid_text(original, LONGEST_REASON)})"
    return Condition(status, valid, valid_text(message, LONGEST_MESSAGE - len(original)) + original)

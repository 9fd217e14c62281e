"""What a condition says."""

from dataclasses import dataclass

from unmask_operator.status.limits import valid_reason, valid_text

LONGEST_MESSAGE = 1024  # characters: foreign sentences may be long
LONGEST_REASON = 256  # characters of an invalid reason that a message quotes


@dataclass(frozen=True)
class Condition:
    status: str  # "True", "False" or "Unknown"
    reason: str
    message: str  # for people; with False it says what to do, where that can be known


def true(reason: str, message: str = "") -> Condition:
    return _verdict("True", reason, message)


def false(reason: str, message: str) -> Condition:
    return _verdict("False", reason, sentence(message))


def unknown(reason: str, message: str) -> Condition:
    return _verdict("Unknown", reason, sentence(message))


def sentence(text: str) -> str:
    """Foreign text as one line of bearable length."""
    return valid_text(" ".join(text.split()), LONGEST_MESSAGE)


def _verdict(status: str, reason: str, message: str) -> Condition:
    """A reason that no condition may have is made valid, and the message then has the original."""
    valid = valid_reason(reason)
    original = " ".join(reason.split())
    if valid == reason or original in message:
        return Condition(status, valid, message)
    original = f" ({valid_text(original, LONGEST_REASON)})"
    return Condition(status, valid, valid_text(message, LONGEST_MESSAGE - len(original)) + original)

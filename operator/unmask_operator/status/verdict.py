"""What a condition says."""

from dataclasses import dataclass

LONGEST_MESSAGE = 1024  # characters: foreign sentences may be long


@dataclass(frozen=True)
class Verdict:
    status: str  # "True", "False" or "Unknown"
    reason: str
    message: str  # for people; with False it says what to do, where that can be known


def yes(reason: str, message: str = "") -> Verdict:
    return Verdict("True", reason, message)


def no(reason: str, message: str) -> Verdict:
    return Verdict("False", reason, sentence(message))


def unknown(reason: str, message: str) -> Verdict:
    return Verdict("Unknown", reason, sentence(message))


def sentence(text: str) -> str:
    """Foreign text as one line of bearable length."""
    line = " ".join(text.split())
    return line if len(line) <= LONGEST_MESSAGE else line[: LONGEST_MESSAGE - 1] + "…"

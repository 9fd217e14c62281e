"""Splits reasoning from the output that follows it."""

from __future__ import annotations

from typing import Literal

from runtime.parsers.formats import ReasoningFormat
from runtime.parsers.partial_match import partial_match_len


class ReasoningParser:
    """Incremental parser of reasoning. White space around reasoning is dropped.

    Attributes:
        consumed: Characters of reasoning and its markers.
        unclosed: Whether the output ended without the end marker.
    """

    def __init__(self, made: ReasoningFormat | None, opened: bool) -> None:
        self._format = made
        self._state: Literal["before", "within", "after", "over"] = (
            "over" if made is None else "within" if opened else "before"
        )
        self._held = ""
        self._begun = False  # reasoning other than white space has begun
        self.consumed = 0
        self.unclosed = False

    @property
    def in_reasoning(self) -> bool:
        """Whether the text so far ends inside reasoning."""
        return self._state == "within"

    @property
    def is_done(self) -> bool:
        """Whether no further text can be reasoning."""
        return self._state in ("after", "over")

    def push(self, text: str) -> tuple[str, str]:
        """Returns the reasoning and the remaining text that are certain now."""
        if self._format is None or self._state == "over":
            return "", text
        self._held += text
        if self._state == "before":
            begun = self._held.lstrip()
            if begun.startswith(self._format.opens):
                self._consume(len(self._held) - len(begun) + len(self._format.opens))
                self._state = "within"
            elif self._format.opens.startswith(begun):
                return "", ""
            else:
                return "", self._over()
        reasoning = self._within() if self._state == "within" else ""
        if self._state == "after":
            self._consume(len(self._held) - len(self._held.lstrip()))
            if self._held:
                return reasoning, self._over()
        return reasoning, ""

    def finish(self) -> tuple[str, str]:
        """Returns the withheld text, at the end of the output."""
        held, state = self._held, self._state
        if state == "within":
            self.unclosed = True
            self.consumed += len(held)
            self._held = ""
            # an incomplete end marker is reasoning, and white space after it is not
            return (held.rstrip() if self._begun else held.strip()), ""
        return "", self._over()

    def _within(self) -> str:
        assert self._format is not None
        if not self._begun:
            self._consume(len(self._held) - len(self._held.lstrip()))
            self._begun = bool(self._held)
        at = self._held.find(self._format.closes)
        if at >= 0:
            found = self._held[:at].rstrip()
            self._consume(at + len(self._format.closes))
            self._state = "after"
            return found
        sure = len(self._held) - partial_match_len(self._format.closes, self._held)
        found = self._held[:sure].rstrip()
        self._consume(len(found))
        return found

    def _consume(self, characters: int) -> None:
        self.consumed += characters
        self._held = self._held[characters:]

    def _over(self) -> str:
        rest, self._held, self._state = self._held, "", "over"
        return rest

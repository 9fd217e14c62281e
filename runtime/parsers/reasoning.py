"""Reasoning at the beginning of an answer, told from what follows it."""

from __future__ import annotations

from typing import Literal

from runtime.parsers.formats import ReasoningFormat
from runtime.parsers.partial_match import beginning_of


class Thought:
    """Takes an answer's text in, a piece at a time. Space around reasoning is dropped.

    Attributes:
        taken: characters that reasoning and its marks took. unclosed: nothing ended it until the answer's end.
    """

    def __init__(self, made: ReasoningFormat | None, opened: bool) -> None:
        self._format = made
        self._state: Literal["before", "within", "after", "over"] = (
            "over" if made is None else "within" if opened else "before"
        )
        self._held = ""
        self._begun = False  # reasoning has more than space
        self.taken = 0
        self.unclosed = False

    @property
    def within(self) -> bool:
        """Whether the text so far ends in reasoning."""
        return self._state == "within"

    @property
    def passed(self) -> bool:
        """Whether nothing that follows can be reasoning."""
        return self._state in ("after", "over")

    def push(self, text: str) -> tuple[str, str]:
        """The reasoning and the rest that are certain now."""
        if self._format is None or self._state == "over":
            return "", text
        self._held += text
        if self._state == "before":
            begun = self._held.lstrip()
            if begun.startswith(self._format.opens):
                self._take(len(self._held) - len(begun) + len(self._format.opens))
                self._state = "within"
            elif self._format.opens.startswith(begun):
                return "", ""
            else:
                return "", self._over()
        reasoning = self._within() if self._state == "within" else ""
        if self._state == "after":
            self._take(len(self._held) - len(self._held.lstrip()))
            if self._held:
                return reasoning, self._over()
        return reasoning, ""

    def finish(self) -> tuple[str, str]:
        """What was held, at the end of the answer."""
        held, state = self._held, self._state
        if state == "within":
            self.unclosed = True
            self.taken += len(held)
            self._held = ""
            # the beginning of a mark that never came is reasoning, and space after it is not
            return (held.rstrip() if self._begun else held.strip()), ""
        return "", self._over()

    def _within(self) -> str:
        assert self._format is not None
        if not self._begun:
            self._take(len(self._held) - len(self._held.lstrip()))
            self._begun = bool(self._held)
        at = self._held.find(self._format.closes)
        if at >= 0:
            found = self._held[:at].rstrip()
            self._take(at + len(self._format.closes))
            self._state = "after"
            return found
        sure = len(self._held) - beginning_of(self._format.closes, self._held)
        found = self._held[:sure].rstrip()
        self._take(len(found))
        return found

    def _take(self, characters: int) -> None:
        self.taken += characters
        self._held = self._held[characters:]

    def _over(self) -> str:
        rest, self._held, self._state = self._held, "", "over"
        return rest

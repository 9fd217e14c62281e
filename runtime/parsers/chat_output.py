"""One answer's parts, out of its stable text as that grows: reasoning first, then text and calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from runtime.parsers.events import Arguments, CallStart, Delta, Reasoning, Text
from runtime.parsers.formats import ReasoningFormat, Tool, ToolFormat
from runtime.parsers.reasoning import Thought
from runtime.parsers.tool_calls import Calls


@dataclass
class Call:
    """A call of the answer so far."""

    id: str
    name: str
    arguments: str = ""


class Parts:
    """Of one answer. However its text was cut into pushes, the deltas of each part, joined, are the same.

    Attributes:
        reasoning, content: so far. calls: so far, in their order.
        thought: characters of the answer's text that its reasoning took, with the marks around it.
    """

    def __init__(
        self,
        *,
        reasoning: ReasoningFormat | None = None,
        opened: bool = False,
        tools: ToolFormat | None = None,
        offered: Sequence[Tool] = (),
        exact: bool = False,
        early: bool = True,
        forced: bool = False,
        single: bool = False,
    ) -> None:
        """
        Args:
            reasoning: how it is marked; None: all of the answer is text and calls. opened: the prompt has opened it.
            tools: how calls are written; None: the answer has none, whatever stands in it.
            exact: a grammar holds calls to their form, so that arguments are passed on as they come, if that is wanted
                `early`; else a call is held back until it is known to be one.
            forced: the answer is calls and nothing else.
            single: the answer ends with its first call.
        """
        self._thought = Thought(reasoning, opened)
        self._format, self._offered, self._single = tools, offered, single
        self._calls = (
            None if tools is None else Calls(tools, offered, exact=exact, early=early, forced=forced, single=single)
        )
        self.reasoning = self.content = ""
        self.calls: list[Call] = []

    @property
    def called(self) -> bool:
        return bool(self.calls)

    @property
    def ended(self) -> bool:
        """Whether nothing that comes still belongs to the answer."""
        return self._single and self._calls is not None and self._calls.complete > 0

    @property
    def thought(self) -> int:
        return self._thought.taken

    def push(self, text: str) -> list[Delta]:
        """Take stable text in; what the answer grew by."""
        if self.ended or not text:
            return []
        found, rest = self._thought.push(text)
        return self._grown([*_reasoning(found), *self._read(rest)])

    def finish(self, cut: bool) -> list[Delta]:
        """The end of the answer. `cut`: it is not the model's own, so that a call that has begun is left as far as it
        was passed on; else what is no whole call is text."""
        if self.ended:
            return []
        found, rest = self._thought.finish()
        read = [*_reasoning(found), *self._read(rest)]
        if self._calls is not None:
            read += self._calls.finish(cut)
        late = self._grown(read)
        if self._thought.unclosed and not (cut or self.calls) and self._format is not None:
            late += self._grown(self._unclosed())
        return late

    def _read(self, text: str) -> list[Delta]:
        if self._calls is not None:
            return self._calls.push(text)
        return [Text(text)] if text else []

    def _unclosed(self) -> list[Delta]:
        """The calls in reasoning that nothing closed, of an answer that would be empty without them."""
        assert self._format is not None
        calls = Calls(self._format, self._offered, single=self._single)
        found = calls.push(self.reasoning) + calls.finish(cut=False)
        return [delta for delta in found if isinstance(delta, CallStart | Arguments)]

    def _grown(self, deltas: list[Delta]) -> list[Delta]:
        """All of them, those that follow each other in one part joined, and taken note of."""
        joined: list[Delta] = []
        for delta in deltas:
            last = joined[-1] if joined else None
            if isinstance(delta, Text) and isinstance(last, Text):
                joined[-1] = Text(last.text + delta.text)
            elif isinstance(delta, Arguments) and isinstance(last, Arguments) and last.index == delta.index:
                joined[-1] = Arguments(last.index, last.text + delta.text)
            else:
                joined.append(delta)
        for delta in joined:
            if isinstance(delta, Reasoning):
                self.reasoning += delta.text
            elif isinstance(delta, Text):
                self.content += delta.text
            elif isinstance(delta, CallStart):
                self.calls.append(Call(delta.id, delta.name))
            else:
                self.calls[delta.index].arguments += delta.text
        return joined


def _reasoning(text: str) -> list[Delta]:
    return [Reasoning(text)] if text else []

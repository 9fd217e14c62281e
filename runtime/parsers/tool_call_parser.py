"""Incremental parser of tool calls in model output, for every registered format of calls.

`ToolCallParser` finds the calls and returns deltas. The `ToolParser` of the format reads one call.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from runtime.parsers.formats import (
    Arguments,
    CallStart,
    Delta,
    NotACall,
    ParsedCall,
    Text,
    Tool,
    ToolFormat,
    ToolParser,
    partial_match_len,
)

MAX_FAILED_CALLS = 32  # false starts after which the rest is text: each may be read to its end again


@dataclass(frozen=True)
class ToolCallOptions:
    """How tool calls of one output are read.

    Attributes:
        format: Format of the calls.
        available_tools: The tools of the request.
        constrained: Whether a grammar constrains calls, so that arguments are passed on unchanged and can be streamed.
            Otherwise a call is withheld until it is complete.
        stream_arguments: Whether to stream arguments of `constrained` calls.
        required: Whether the output consists of calls only, as with `tool_choice` "required".
        single_call: Whether the output ends with its first call.
    """

    format: ToolFormat
    available_tools: Sequence[Tool] = ()
    constrained: bool = False
    stream_arguments: bool = True
    required: bool = False
    single_call: bool = False


class ToolCallParser:
    """Incremental parser of text with tool calls.

    Text that may be the beginning of a call is withheld, and becomes text if it is not. White space between text and a
    call belongs to the call.

    Attributes:
        num_complete: Number of complete calls.
    """

    def __init__(self, options: ToolCallOptions) -> None:
        self._options = options
        self._buffer = ""  # unread text
        self._parser: ToolParser | None = None  # parser of the open call
        self._start_marker = self._call_text = ""  # of the open call; the marker includes the space before it
        self._end_markers = (options.format.closes, *options.format.strays)
        self._after_call = False  # after a call, whose end markers may follow
        self._only_space = False  # only white space since the last call
        self._num_started = 0  # calls with a `CallStart`
        self._num_failed = 0  # false starts
        # Streamed characters of the open call's arguments; None before its `CallStart`.
        self._num_streamed: int | None = None
        self.num_complete = 0

    def push(self, text: str) -> list[Delta]:
        """Adds text; returns the deltas that are certain now."""
        deltas: list[Delta] = []
        self._buffer += text
        while self._buffer and not self.is_over and self._step(deltas):
            pass
        return deltas

    def finish(self, cut: bool) -> list[Delta]:
        """Returns the deltas of withheld text, at the end of the output; see `ChatOutputParser.finish`."""
        deltas: list[Delta] = []
        if self.is_over or self._after_call:
            return deltas
        if self._options.required:  # the rest is an incomplete call
            return deltas
        if self._parser is None:
            self._add_text(deltas, self._buffer)
        elif self._num_streamed is None and not cut:
            self._add_text(deltas, self._start_marker + self._call_text)
        return deltas

    @property
    def is_over(self) -> bool:
        """Whether further text is ignored."""
        return self._options.single_call and self.num_complete > 0

    def _step(self, deltas: list[Delta]) -> bool:
        """Reads up to the next marker; returns False if more text is needed."""
        if self._parser is not None:
            return self._read_call(deltas, self._parser)
        return self._drop_end_markers() if self._after_call else self._read_text(deltas)

    def _read_text(self, deltas: list[Delta]) -> bool:
        if self._num_failed == MAX_FAILED_CALLS:
            text, self._buffer = self._buffer, ""
            self._add_text(deltas, text)
            return False
        at = self._buffer.find(self._options.format.opens)
        num_certain = len(self._buffer) - partial_match_len(self._options.format.opens, self._buffer) if at < 0 else at
        text = self._buffer[:num_certain].rstrip()
        self._add_text(deltas, text)
        self._buffer = self._buffer[len(text) :]
        if at < 0:
            return False
        end = at - len(text) + len(self._options.format.opens)
        self._start_marker, self._buffer = self._buffer[:end], self._buffer[end:]
        self._parser = self._options.format.parser(self._options.available_tools)
        self._call_text, self._num_streamed = "", None
        return True

    def _read_call(self, deltas: list[Delta], parser: ToolParser) -> bool:
        new_text, self._buffer = self._buffer, ""
        self._call_text += new_text
        result = parser.feed(new_text)
        partial = parser.partial() if self._options.constrained else None
        if partial is not None and (self._options.stream_arguments or isinstance(result, ParsedCall)):
            self._stream_call(deltas, *partial)
        if result is None:
            return False
        self._parser = None
        if isinstance(result, NotACall):
            self._num_failed += 1
            if self._num_streamed is None:
                self._add_text(deltas, self._start_marker)
                self._buffer = self._call_text
            return True
        self._end_call(deltas, result)
        return True

    def _end_call(self, deltas: list[Delta], call: ParsedCall) -> None:
        if self._num_streamed is None:
            self._stream_call(deltas, call.name, call.arguments)
        self.num_complete += 1
        self._buffer = call.rest
        self._after_call = self._only_space = True

    def _drop_end_markers(self) -> bool:
        """Drops end markers. Models repeat them, above all after calls without arguments."""
        stripped = self._buffer.lstrip()
        for marker in self._end_markers:
            if stripped.startswith(marker):
                self._buffer = stripped[len(marker) :]
                return True
        if any(marker.startswith(stripped) for marker in self._end_markers):
            return False
        self._after_call = False
        return True

    def _stream_call(self, deltas: list[Delta], name: str, arguments: str) -> None:
        """Adds the deltas of the open call."""
        if self._num_streamed is None:
            self._num_streamed = 0
            deltas.append(CallStart(self._num_started, f"call_{secrets.token_hex(12)}", name))
            self._num_started += 1
        if new_text := arguments[self._num_streamed :]:
            deltas.append(Arguments(self._num_started - 1, new_text))
            self._num_streamed += len(new_text)

    def _add_text(self, deltas: list[Delta], text: str) -> None:
        if self._only_space:
            text = text.lstrip()
        if text:
            self._only_space = False
            deltas.append(Text(text))

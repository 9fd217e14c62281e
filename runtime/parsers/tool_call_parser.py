"""Incremental parser of tool calls in model output, for every registered format of calls.

`ToolCallParser` finds the calls and returns deltas. The `ToolParser` of the format reads one call.
"""

from __future__ import annotations

import re
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

MAX_PIECES = 256  # characters of a line after a call that are dropped if they are pieces of end markers
MAX_FAILED_CALLS = 32  # false starts after which the rest is text: each may be read to its end again


@dataclass(frozen=True)
class ToolCallOptions:
    """How tool calls of one output are read.

    Attributes:
        format: Format of the calls.
        available_tools: The tools that may be called. A call of another name is text.
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
    call belongs to the call. After a call, brackets and pieces of end markers are dropped up to the end of their line:
    models that fill a block in parallel write some twice or in the wrong order.

    Attributes:
        num_complete: Number of complete calls.
    """

    def __init__(self, options: ToolCallOptions) -> None:
        self._options = options
        self._buffer = ""  # unread text
        self._parser: ToolParser | None = None  # parser of the open call
        self._start_marker = self._call_text = ""  # of the open call; the marker includes the space before it
        self._names = {tool.name for tool in options.available_tools}
        self._end_markers = (options.format.closes, *options.format.strays)
        self._pieces = {"}", "]", ",", *re.findall(r"[A-Za-z]+|[^A-Za-z\s]", "".join(self._end_markers))}
        self._starts = [start for start in (options.format.opens, options.format.begins) if start]
        pieces, starts = ("|".join(map(re.escape, some)) for some in (self._pieces, self._starts))
        self._pieces_of_line = re.compile(rf"(?:(?!{starts})(?:[^\S\n]|{pieces}))*")
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
        call = None if cut or self._parser is None else self._parser.end()
        if call is not None and call.name in self._names:
            self._end_call(deltas, call)
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
        return self._read_after_call() if self._after_call else self._read_text(deltas)

    def _read_text(self, deltas: list[Delta]) -> bool:
        if self._num_failed == MAX_FAILED_CALLS:
            text, self._buffer = self._buffer, ""
            self._add_text(deltas, text)
            return False
        at, marker = self._find_start()
        text = self._buffer[:at].rstrip()
        self._add_text(deltas, text)
        self._buffer = self._buffer[len(text) :]
        if not marker:
            return False
        self._open_call(at - len(text), marker)
        return True

    def _find_start(self) -> tuple[int, str]:
        """Returns the offset of the first start marker and the marker; without one, the length of certain text."""
        markers = self._starts if self._options.format.begins_alone else [self._options.format.opens]
        found = [(at, marker) for marker in markers if (at := self._buffer.find(marker)) >= 0]
        if found:
            return min(found)
        return len(self._buffer) - max(partial_match_len(marker, self._buffer) for marker in markers), ""

    def _open_call(self, space: int, marker: str) -> None:
        """Begins a call after `space` characters of white space and the marker, which may begin the call's text."""
        end = space + len(marker)
        self._start_marker, self._buffer = self._buffer[:end], self._buffer[end:]
        self._parser = self._options.format.parser(self._options.available_tools)
        self._call_text, self._num_streamed = "", None
        if marker != self._options.format.opens:
            self._parser.feed(marker)

    def _read_call(self, deltas: list[Delta], parser: ToolParser) -> bool:
        new_text, self._buffer = self._buffer, ""
        self._call_text += new_text
        result = parser.feed(new_text)
        if isinstance(result, ParsedCall) and result.name not in self._names:
            result = NotACall()
        partial = parser.partial() if self._options.constrained else None
        may_stream = self._options.stream_arguments or isinstance(result, ParsedCall)
        if partial is not None and partial[0] in self._names and may_stream:
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

    def _read_after_call(self) -> bool:
        """Drops end markers and pieces of them, and finds the start of another call, also without its marker.

        Models repeat end markers, above all after calls without arguments.
        """
        stripped = self._buffer.lstrip()
        for marker in self._end_markers:
            if stripped.startswith(marker):
                self._buffer = stripped[len(marker) :]
                return True
        found = None if stripped[:1].isalpha() else self._pieces_of_line.match(stripped)
        pieces = "" if found is None or len(found[0]) > MAX_PIECES else found[0]
        following = stripped[len(pieces) :]
        if pieces and following.startswith("\n"):  # the line has nothing else
            self._buffer = following
            return True
        if (pieces or not stripped) and any(each.startswith(following) for each in (*self._pieces, *self._starts)):
            return False
        self._after_call = False
        start = next((start for start in self._starts if following.startswith(start)), "")
        if start:
            self._buffer = following
            self._open_call(0, start)
        else:  # pieces before text belong to it, from the last end marker on
            ends = [pieces.rfind(marker) + len(marker) for marker in self._end_markers if marker in pieces]
            self._buffer = stripped[max(ends, default=0) :]
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

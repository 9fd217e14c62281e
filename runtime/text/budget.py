"""What one rendering of a chat template may take, so that neither a conversation nor a template can hold a server."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from typing import Any

from jinja2 import pass_eval_context
from jinja2.exceptions import SecurityError
from jinja2.filters import do_center, do_format, do_indent, do_replace
from jinja2.nodes import EvalContext
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_CHARS = 4 * 2**20  # characters that a template may write
MAX_SECONDS = 2.0  # of the rendering thread's own time, whatever else the machine does
GRACE = 0.01  # seconds by the clock on the wall that are not counted: to ask for a thread's own time is a system call
MAX_FACTOR = 10_000  # of a text or list that a template repeats

_NUMBER = re.compile(r"\d+")
_PERCENT = re.compile(r"%(?:\([^()]*\))?[-#0 +\d.*]*")  # a conversion of "%5d" % x
_BRACES = re.compile(r"\{[^{}]*:[^{}]*\{?")  # a replacement field of "{:5}".format(x)

_current: ContextVar[Budget] = ContextVar("budget")


class Spent(Exception):
    """The budget is used up; the message ends a sentence that begins with "the template"."""


class Abandoned(Exception):
    """Nobody waits for this work any more."""


class Budget:
    """Counts what a rendering writes and how long it takes; `wanted` says whether anybody still waits for it."""

    def __init__(self, chars: int = MAX_CHARS, wanted: Callable[[], bool] = lambda: True) -> None:
        self._chars = chars
        self._wanted = wanted
        self._grace = time.monotonic() + GRACE
        self._end: float | None = None  # of this thread's own time, once it is looked at

    def gather(self, pieces: Iterable[str]) -> str:
        """The pieces as one text. Raises Spent or Abandoned as soon as it is too much."""
        written: list[str] = []
        length = 0
        token = _current.set(self)
        try:
            for piece in pieces:
                written.append(piece)
                length += len(piece)
                if length > self._chars:
                    raise Spent(f"writes more than {self._chars} characters")
                self.check()
        finally:
            _current.reset(token)
        return "".join(written)

    def check(self) -> None:
        if time.monotonic() > self._grace:
            now = time.thread_time()
            if self._end is None:
                self._end = now + MAX_SECONDS
            elif now > self._end:
                raise Spent(f"takes more than {MAX_SECONDS:g} s")
        if not self._wanted():
            raise Abandoned


class Watched:
    """What a loop of a template goes through, with a look at the budget before each item."""

    def __init__(self, items: Any) -> None:
        self._items = items

    def __iter__(self) -> Iterator[Any]:
        check = _current.get().check
        for item in self._items:
            check()
            yield item

    def __len__(self) -> int:  # of ``loop.length``, which counts by itself what has no length
        return len(self._items)


def bounded(pieces: Iterable[str]) -> str:
    """The pieces as one text, within the time and size of the current rendering. Raises Spent beyond them."""
    written: list[str] = []
    length = 0
    for piece in pieces:
        written.append(piece)
        length += len(piece)
        if length > MAX_CHARS:
            raise Spent(f"writes more than {MAX_CHARS} characters")
        with contextlib.suppress(LookupError):  # constants are computed before a rendering begins
            _current.get().check()
    return "".join(written)


def check_size(sizes: Iterable[int], factor: int = 1) -> None:
    """Raises SecurityError if one of `sizes` (widths, lengths) exceeds MAX_FACTOR, or MAX_CHARS when it is repeated
    `factor` times."""
    for size in sizes:
        if size > MAX_FACTOR or size * factor > MAX_CHARS:
            raise SecurityError(f"a text is padded or repeated to more than {MAX_FACTOR} characters at once")


def _check_format(conversion: re.Pattern[str], form: str, args: Iterable[Any]) -> None:
    """Raises SecurityError for a format whose widths are too large, whether it or an argument states them."""
    found: list[str] = conversion.findall(form)
    check_size(int(number) for part in found for number in _NUMBER.findall(part))
    if any("*" in part or part.endswith("{") for part in found):
        check_size(arg for arg in args if isinstance(arg, int))


def _check_replacement(text: str, old: Any, new: Any) -> None:
    """Raises SecurityError for replacements that make a text too long."""
    if len(str(new)) > len(str(old)) and len(text) + text.count(str(old)) * len(str(new)) > MAX_CHARS:
        raise SecurityError(f"a replacement makes more than {MAX_CHARS} characters")


def _check_method(owner: str, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raises SecurityError for a call of a method of a text whose result would be too large."""
    values = [*args, *kwargs.values()]
    if name in ("center", "ljust", "rjust", "zfill", "expandtabs"):
        factor = owner.count("\t") + 1 if name == "expandtabs" else 1
        check_size((value for value in values if isinstance(value, int)), factor)
    elif name in ("format", "format_map"):
        _check_format(_BRACES, owner, _flat(values))
    elif name == "replace" and len(values) > 1:
        _check_replacement(owner, values[0], values[1])


def _flat(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        yield from value.values() if isinstance(value, dict) else value if isinstance(value, tuple) else (value,)


def _center(value: Any, width: int = 80) -> str:
    check_size([width])
    return do_center(str(value), width)


def _indent(value: Any, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    text = str(value)
    check_size([width if isinstance(width, int) else len(width)], factor=text.count("\n") + 1)
    return do_indent(text, width, first, blank)


def _format(value: Any, *args: Any, **kwargs: Any) -> str:
    _check_format(_PERCENT, str(value), _flat([*args, kwargs]))
    return do_format(str(value), *args, **kwargs)


@pass_eval_context
def _replace(context: EvalContext, value: Any, old: str, new: str, count: int | None = None) -> str:
    _check_replacement(str(value), old, new)
    return do_replace(context, str(value), old, new, count)


class Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox. Calls check the budget, and no filter, method or operator makes a huge text in one step."""

    intercepted_binops = frozenset({"*", "**", "%"})

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.filters |= {"center": _center, "indent": _indent, "format": _format, "replace": _replace}

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        with contextlib.suppress(LookupError):  # a template's constants are worked out before it is rendered
            _current.get().check()
        method = getattr(__obj, "__wrapped__", __obj)  # jinja wraps format and format_map
        owner = getattr(method, "__self__", None)
        if isinstance(owner, str):
            _check_method(owner, getattr(method, "__name__", ""), args, kwargs)
        return super().call(__context, __obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "**":
            if max(abs(left), abs(right)) > MAX_FACTOR:
                raise SecurityError("a power of these numbers is too large")
        elif operator == "%":
            if isinstance(left, str):
                _check_format(_PERCENT, left, _flat([right]))
        elif not all(isinstance(value, int | float) for value in (left, right)):
            count = right if isinstance(right, int) else left
            if isinstance(count, int) and count > MAX_FACTOR:
                raise SecurityError(f"nothing is repeated more than {MAX_FACTOR} times")
        return super().call_binop(context, operator, left, right)

"""Jinja's sandbox with size limits: per string, list and number, and for their sum.

A filter, method or operator is one call that cannot be interrupted. Therefore the size of its result is computed first
if it may exceed its operands (repetition, padding, joining, replacing, formatting). Every result is checked and charged
to the rendering's budget.
"""

from __future__ import annotations

import contextlib
import functools
import re
import string
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, MappingView, Sequence
from contextvars import ContextVar
from typing import Any

from jinja2 import Environment, nodes, pass_eval_context
from jinja2.exceptions import SecurityError
from jinja2.filters import do_center, do_format, do_indent, do_join, do_replace, do_round, do_sum, do_wordwrap
from jinja2.nodes import EvalContext
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from runtime.tokenizer.marked_text import METHODS, Marks

MAX_CHARS = 4 * 2**20  # maximum characters that a template writes, and of one string
MAX_BYTES = 64 * 2**20  # maximum bytes of all strings and lists that a rendering creates, including temporary ones
MAX_SECONDS = 2.0  # maximum CPU time of the rendering thread
GRACE = 0.01  # seconds of wall time without a check: reading a thread's CPU time is a system call

_current: ContextVar[RenderBudget] = ContextVar("budget")


MAX_FACTOR = 10_000  # maximum repetitions of a string or list, and columns of padding
MAX_ITEMS = 100_000  # maximum items of a list
MAX_NODES = 300_000  # maximum values in lists and mappings that become text; a request's body has at most 131,072
MAX_BITS = 4096  # maximum bits of an integer
MAX_DIGITS = 400  # maximum digits to which a value is rounded; a float has fewer
MAX_SLOW_CHARS = 65_536  # maximum string length for filters that take seconds for megabytes
# Nesting of lists and mappings that are converted to text: 64 levels of a call's arguments, inside of a conversation.
MAX_DEPTH = 72
CHECKED = "checked"  # the filter of what a loop iterates over
CONCATENATED = "concatenated"  # the filter that replaces ``a ~ b``
SLICED = "sliced"  # the filter that replaces ``a[b:c:d]``
PLAIN = "plain"  # the filter of compared values, which removes marks
# Filters that take the items of a value, which are characters if it is a text.
_ITEM_FILTERS = frozenset(
    {"batch", "first", "items", "last", "list", "map", "random", "reject", "rejectattr", "reverse", "select"}
    | {"selectattr", "slice", CHECKED}
)
# Further filters that read no text in a list, and those that read marks.
_SHALLOW_FILTERS = _ITEM_FILTERS | {"attr", "count", "d", "default", "length", CONCATENATED, SLICED}
_MARK_FILTERS = _SHALLOW_FILTERS | {"capitalize", "lower", "replace", "upper"}
_SLOW_FILTERS = frozenset({"pprint", "striptags", "urlize", "wordwrap"})
_COUNTING_FILTERS = frozenset({"batch", "slice"})  # their argument is the number of items
_SPLITS = frozenset({"split", "rsplit"})
_CALL_VARIABLES = ("_block_vars", "_loop_vars")  # arguments that jinja adds for functions with a context
_COMPARING_TESTS = frozenset({
    "eq", "equalto", "==", "ne", "!=", "in", "lt", "lessthan", "<", "le", "<=", "gt", "greaterthan", ">", "ge", ">=",
    "lower", "upper",
})  # fmt: skip
_LINE_BREAKS = re.compile("[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")
_NUMBER = re.compile(r"\d+")
_PERCENT = re.compile(r"%(?:\([^()]*\))?[-#0 +\d.*]*")  # a conversion of "%5d" % x
_NESTED_KEY = re.compile(r"%\([^()]*\(")  # "%(a(b))5d", whose key _PERCENT does not match
_NUMBERS = (bytes, bytearray, int, float)  # methods of these types are not available: templates need none


class BudgetExceeded(Exception):
    """A limit is exceeded. The message continues a sentence that begins with "the template"."""


class Cancelled(Exception):
    """The client has disconnected, so the result is not needed."""


class RenderBudget:
    """Budget of one rendering: written characters, created bytes and CPU time.

    Args:
        chars: Maximum number of written characters.
        is_needed: Returns False once the client has disconnected.
    """

    def __init__(self, chars: int = MAX_CHARS, is_needed: Callable[[], bool] = lambda: True) -> None:
        self._chars = chars
        self._is_needed = is_needed
        self._grace = time.monotonic() + GRACE
        self._end: float | None = None  # CPU time of this thread, set by the first check
        self._bytes = 0

    def gather(self, pieces: Iterable[str]) -> str:
        """Joins the pieces. Raises BudgetExceeded or Cancelled as soon as a limit is exceeded."""
        token = _current.set(self)
        try:
            return join_bounded(pieces, self._chars)
        finally:
            _current.reset(token)

    def charge(self, value: Any) -> None:
        """Counts a value that the rendering has created. Raises BudgetExceeded beyond `MAX_BYTES`."""
        self._bytes += sys.getsizeof(value)
        if self._bytes > MAX_BYTES:
            raise BudgetExceeded(f"creates more than {MAX_BYTES >> 20} MiB of values")

    def check(self) -> None:
        if time.monotonic() > self._grace:
            now = time.thread_time()
            if self._end is None:
                self._end = now + MAX_SECONDS
            elif now > self._end:
                raise BudgetExceeded(f"takes more than {MAX_SECONDS:g} s")
        if not self._is_needed():
            raise Cancelled


class CheckedIterable:
    """Iterable of a template's loop that checks the budget before each item."""

    def __init__(self, items: Any) -> None:
        self._items = items

    def __iter__(self) -> Iterator[Any]:
        check = _current.get().check
        for item in self._items:
            check()
            yield item

    def __len__(self) -> int:  # for ``loop.length``, which counts items itself if there is no length
        return len(self._items)


def check() -> None:
    """Checks the current rendering's budget. Constants of a template are computed before there is one."""
    budget = _current.get(None)
    if budget is not None:
        budget.check()


def charge(value: Any) -> None:
    """Counts a value that the current rendering has created."""
    budget = _current.get(None)
    if budget is not None:
        budget.charge(value)


def join_bounded(pieces: Iterable[str], limit: int | None = None) -> str:
    """Joins pieces within the current rendering's budget. Raises BudgetExceeded.

    `limit`: maximum number of characters; MAX_CHARS if None.
    """
    limit = MAX_CHARS if limit is None else limit
    budget = _current.get(None)
    written: list[str] = []
    length = 0
    for piece in pieces:
        written.append(piece)
        length += len(piece)
        if length > limit:
            raise BudgetExceeded(f"writes more than {limit} characters")
        if budget is not None:
            budget.check()
    return "".join(written)


def checked(value: Any) -> Any:
    """Charges and returns the result of a step. Raises SecurityError if it is too large."""
    if isinstance(value, str | bytes):
        _check_length(len(value))
    elif isinstance(value, list | tuple | dict | set | frozenset):
        _check_joined(value, len(value))
    elif isinstance(value, int):
        if value.bit_length() > MAX_BITS:
            raise SecurityError(f"an integer has more than {MAX_BITS} bits")
        return value
    else:
        return value
    charge(value)
    return value


def check_text_of(*values: Any) -> int:
    """Returns the approximate length of the values as text. Raises SecurityError if it is too large.

    Lists and mappings are traversed, since one string may be in them many times.
    """
    length, nodes_left = 0, MAX_NODES
    pending: list[tuple[Any, int]] = [(value, 0) for value in values]
    while pending:
        value, depth = pending.pop()
        if isinstance(value, str | bytes):
            length += len(value)
        elif isinstance(value, Mapping) and depth < MAX_DEPTH:
            pending += [(item, depth + 1) for pair in value.items() for item in pair]
        elif isinstance(value, list | tuple | set | frozenset) and depth < MAX_DEPTH:
            pending += [(item, depth + 1) for item in value]
        elif depth >= MAX_DEPTH:
            raise SecurityError(f"a value is nested more than {MAX_DEPTH} levels")
        length += 2
        nodes_left -= 1
        _check_length(length)
        if not nodes_left:
            raise SecurityError(f"a value consists of more than {MAX_NODES} values")
    return length


def check_size(sizes: Iterable[int], factor: int = 1) -> None:
    """Raises SecurityError if one of `sizes` (widths, lengths) exceeds MAX_FACTOR, or MAX_CHARS when it is repeated
    `factor` times."""
    for size in sizes:
        if size > MAX_FACTOR or size * factor > MAX_CHARS:
            raise SecurityError(f"a text is padded or repeated to more than {MAX_FACTOR} characters at once")


def _check_length(length: int) -> None:
    if length > MAX_CHARS:
        raise SecurityError(f"a text has more than {MAX_CHARS} characters")


def _check_joined(kind: Any, length: int) -> None:
    """Raises SecurityError if a text or list like `kind` would be too long."""
    if isinstance(kind, str | bytes):
        _check_length(length)
    elif length > MAX_ITEMS:
        raise SecurityError(f"a list has more than {MAX_ITEMS} items")


def _check_percent(form: str, args: Iterable[Any]) -> None:
    """Raises SecurityError for ``form % args`` if it would make too much text."""
    if _NESTED_KEY.search(form):
        raise SecurityError("the key of a format contains a parenthesis")
    found: list[str] = _PERCENT.findall(form)
    values = list(args)
    widths = [int(number) for part in found for number in _NUMBER.findall(part)]
    if any("*" in part for part in found):
        widths += [abs(arg) for arg in values if isinstance(arg, int)]
    _check_formatted(form, form.count("%"), widths, values)


def _check_braces(form: str, args: Iterable[Any]) -> None:
    """Raises SecurityError for ``form.format(args)`` if it would make too much text."""
    specs = [spec for _, name, spec, _ in string.Formatter().parse(form) if name is not None]
    if any("{" in (spec or "") for spec in specs):
        raise SecurityError("a format's width or precision is itself a replacement field")
    widths = [int(number) for spec in specs for number in _NUMBER.findall(spec or "")]
    _check_formatted(form, len(specs), widths, list(args))


def _check_formatted(form: str, count: int, widths: Sequence[int], values: Sequence[Any]) -> None:
    """Raises SecurityError if `count` values with these widths and precisions are too long as text."""
    check_size(widths)
    longest = max((check_text_of(value) for value in values), default=0)
    _check_length(len(form) + sum(widths) + count * longest)


def _check_replacement(text: str, old: Any, new: Any) -> None:
    """Raises SecurityError for replacements that make a text too long."""
    if len(str(new)) > len(str(old)) and len(text) + (text.count(str(old)) + 1) * len(str(new)) > MAX_CHARS:
        raise SecurityError(f"a replacement makes more than {MAX_CHARS} characters")


def _check_method(owner: str, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raises SecurityError for a call of a method of a text whose result would be too large."""
    values = [*args, *kwargs.values()]
    if name in ("center", "ljust", "rjust", "zfill", "expandtabs"):
        factor = owner.count("\t") + 1 if name == "expandtabs" else 1
        check_size((value for value in values if isinstance(value, int)), factor)
    elif name in ("format", "format_map"):
        _check_braces(owner, _flat(values))
    elif name == "replace" and len(values) > 1:
        _check_replacement(owner, values[0], values[1])
    elif name == "join" and values and isinstance(values[0], Sequence):
        _check_length(check_text_of(values[0]) + len(owner) * len(values[0]))
    elif name == "translate" and values and isinstance(values[0], Mapping):
        longest = max((check_text_of(value) for value in values[0].values()), default=1)
        _check_length(len(owner) * max(longest - 2, 1))
    elif name == "splitlines":
        _check_items(len(_LINE_BREAKS.findall(owner[: MAX_CHARS + 1])))
    elif name in _SPLITS:
        separator = kwargs.get("sep", args[0] if args else None)
        _check_items(len(owner.split(None, MAX_ITEMS)) if separator is None else owner.count(separator))


def _check_items(count: int) -> None:
    if count >= MAX_ITEMS:
        raise SecurityError(f"a text is split into more than {MAX_ITEMS} parts")


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
    _check_percent(str(value), _flat([*args, kwargs]))
    return do_format(str(value), *args, **kwargs)


@pass_eval_context
def _replace(context: EvalContext, value: Any, old: str, new: str, count: int | None = None) -> str:
    _check_replacement(str(value), old, new)
    return do_replace(context, str(value), old, new, count)


@pass_eval_context
def _join(context: EvalContext, value: Any, d: str = "", attribute: str | int | None = None) -> Any:
    items = _collected(value)
    _check_length(check_text_of(items) + len(str(d)) * len(items))
    return do_join(context, items, d, attribute)


def _round(value: Any, precision: int = 0, method: str = "common") -> Any:
    if abs(precision) > MAX_DIGITS:
        raise SecurityError(f"round takes a precision of at most {MAX_DIGITS} digits")
    return do_round(value, precision, method)  # type: ignore[arg-type]


def _sum(environment: Environment, value: Any, attribute: str | int | None = None, start: Any = 0) -> Any:
    if not isinstance(start, int | float):
        raise SecurityError("sum adds numbers only")
    return do_sum(environment, _collected(value), attribute, start)


def _wordwrap(environment: Environment, value: str, *args: Any, **kwargs: Any) -> str:
    separator = kwargs.get("wrapstring", args[2] if len(args) > 2 else None)
    _check_length(len(value) * (1 + len(separator or "")))
    return do_wordwrap(environment, value, *args, **kwargs)


def _collected(value: Any) -> list[Any]:
    """Collects the items of any iterable. Raises SecurityError if there are too many."""
    items = []
    for item in value:
        items.append(item)
        if len(items) > MAX_ITEMS:
            raise SecurityError(f"a list has more than {MAX_ITEMS} items")
    return items


def _guarded(name: str, function: Callable[..., Any], marks: Marks) -> Callable[..., Any]:
    """Wraps a filter with checks of its operands and result. It gets texts without marks, unless it can read them."""
    passed = 1 if hasattr(function, "jinja_pass_arg") else 0  # number of arguments before the value

    @functools.wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        check()
        context, (value, *others) = args[:passed], args[passed:]
        if name in _ITEM_FILTERS and isinstance(value, str):
            value = marks.unmarked(value)
        elif name not in _SHALLOW_FILTERS:
            if isinstance(value, Iterator | MappingView):
                value = _collected(value)
            check_text_of(value, *others, *kwargs.values())
        if name in _SLOW_FILTERS and len(str(value)) > MAX_SLOW_CHARS:
            raise SecurityError(f"the filter {name} takes texts of at most {MAX_SLOW_CHARS} characters")
        if name in _COUNTING_FILTERS:
            check_size(arg for arg in (*others, *kwargs.values()) if isinstance(arg, int))
        if name == "list":
            return checked(_collected(value))
        if name in _MARK_FILTERS:
            result = function(*context, value, *others, **kwargs)
        else:
            result = marks.apply(function, *context, value, *others, **kwargs)
        return result if result is value else checked(result)

    return guarded


class _Replacement(NodeTransformer):
    """Replaces operators that jinja compiles to plain Python by filters."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return self._filter(CONCATENATED, nodes.List(node.nodes, lineno=node.lineno), [], node)

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        node.expr = self._plain(node.expr)
        for operand in node.ops:
            operand.expr = self._plain(operand.expr)
        return node

    def _plain(self, node: nodes.Expr) -> nodes.Expr:
        return node if isinstance(node, nodes.Const) else self._filter(PLAIN, node, [], node)

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        if not isinstance(node.arg, nodes.Slice):
            return node
        bounds = (node.arg.start, node.arg.stop, node.arg.step)
        args = [nodes.Const(None, lineno=node.lineno) if bound is None else bound for bound in bounds]
        return self._filter(SLICED, node.node, args, node)

    def _filter(self, name: str, value: nodes.Expr, args: list[nodes.Expr], at: nodes.Node) -> nodes.Filter:
        return nodes.Filter(value, name, args, [], None, None, lineno=at.lineno, environment=self._environment)


class Sandbox(ImmutableSandboxedEnvironment):
    """The environment of chat templates. What compares, searches or cuts text sees special tokens instead of marks."""

    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "%", "**"})

    def __init__(self, marks: Marks, **options: Any) -> None:
        super().__init__(**options, finalize=self._finalize)
        self._marks = marks
        self.filters |= {"center": _center, "indent": _indent, "format": _format, "join": _join}
        self.filters |= {name: self._as_method(name, self.filters[name]) for name in ("lower", "upper", "capitalize")}
        self.filters |= {"replace": self._as_method("replace", _replace)}
        self.filters |= dict.fromkeys(("length", "count"), self._length)
        self.tests |= {name: self._on_plain(test) for name, test in self.tests.items() if name in _COMPARING_TESTS}
        self.filters["round"] = _round
        for name, bounded_filter in (("sum", _sum), ("wordwrap", _wordwrap)):
            self.filters[name] = functools.wraps(self.filters[name])(bounded_filter)
        self.filters |= {CHECKED: CheckedIterable, CONCATENATED: self._concatenated, SLICED: self._sliced}
        self.guard_filters(self.filters)
        self.filters[PLAIN] = marks.plain
        del self.globals["lipsum"]
        self.concat = self._concat  # type: ignore[method-assign]  # joins the text of blocks, macros and calls

    def guard_filters(self, filters: Mapping[str, Callable[..., Any]]) -> None:
        """Adds filters with checks of their operands and results."""
        self.filters |= {name: _guarded(name, function, self._marks) for name, function in filters.items()}

    def replace_operators(self, tree: nodes.Template) -> nodes.Template:
        """Replaces operators that are not intercepted otherwise, in a parsed template."""
        _Replacement(self).visit(tree)
        return tree

    def getitem(self, obj: Any, argument: Any) -> Any:
        if isinstance(argument, int) and self._marks.any_in(obj):
            with contextlib.suppress(IndexError):
                return self._marks.item(obj, argument)
        return super().getitem(obj, self._marks.plain(argument))

    def _sliced(self, value: Any, start: Any, stop: Any, step: Any) -> Any:
        bounds = slice(start, stop, step)
        return self._marks.item(value, bounds) if self._marks.any_in(value) else value[bounds]

    def _length(self, value: Any) -> int:
        return len(self._marks.plain(value) if isinstance(value, str) else value)

    def _as_method(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a filter that does as the method of that name does to a text with marks."""

        @functools.wraps(function)
        def with_marks(*args: Any, **kwargs: Any) -> Any:
            passed = 1 if hasattr(function, "jinja_pass_arg") else 0  # number of arguments before the value
            text, *others = args[passed:]
            if self._marks.any_in(text, *others, *kwargs.values()):
                text = str(self._finalize(text))
                _check_method(self._marks.unmarked(text), name, tuple(others), kwargs)
                return self._marks.call(text, name, others, kwargs)
            return self._marks.apply(function, *args, **kwargs)

        return with_marks

    def _on_plain(self, test: Any) -> Callable[..., bool]:
        @functools.wraps(test)
        def on_plain(*args: Any) -> bool:
            return bool(test(*map(self._marks.plain, args)))

        return on_plain

    def _concatenated(self, values: Sequence[Any]) -> str:
        check_text_of(*values)
        return "".join([str(self._finalize(value)) for value in values])

    def _finalize(self, value: Any) -> Any:
        """Converts a list, tuple or dictionary to text, and checks others, before ``{{ value }}`` converts them."""
        if isinstance(value, str):
            return value
        check_text_of(value)
        return self._marks.apply(str, value) if isinstance(value, list | tuple | dict) else value

    @staticmethod
    def _concat(pieces: Iterable[str]) -> str:
        written = list(pieces)
        _check_length(sum(map(len, written)))
        return str(checked("".join(written)))

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        check()
        method = getattr(__obj, "__wrapped__", __obj)  # jinja wraps format and format_map
        owner, name = getattr(method, "__self__", None), getattr(method, "__name__", "")
        if isinstance(owner, _NUMBERS) or (isinstance(owner, str) and name == "encode"):
            raise SecurityError(f"the method {name} is not available in templates")
        if isinstance(owner, str | list | tuple):
            kwargs = {key: value for key, value in kwargs.items() if key not in _CALL_VARIABLES}
        if isinstance(owner, str):
            if name == "join" and args and not isinstance(args[0], Sequence):
                args = (_collected(args[0]), *args[1:])
            if name in METHODS and __self._marks.any_in(owner, *args, *kwargs.values()):
                _check_method(__self._marks.unmarked(owner), name, args, kwargs)
                return checked(__self._marks.call(owner, name, args, kwargs))
            _check_method(owner, name, args, kwargs)
        elif isinstance(owner, dict):
            args = (*map(__self._marks.plain, args[:1]), *args[1:])  # a key
        if isinstance(owner, str | list | tuple):
            check_text_of(owner, *args, *kwargs.values())

            def call(owner: Any, *args: Any, **kwargs: Any) -> Any:
                return super(Sandbox, __self).call(__context, __self.getattr(owner, name), *args, **kwargs)

            result = __self._marks.apply(call, owner, *args, **kwargs)
        else:
            result = super().call(__context, __obj, *args, **kwargs)
        return result if result is owner else checked(result)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        check()
        if operator == "**":
            if max(abs(left), abs(right)) > MAX_FACTOR:
                raise SecurityError("a power of these numbers is too large")
        elif operator == "%":
            if isinstance(left, str):
                _check_percent(left, _flat([right]))
        elif operator == "+":
            if not isinstance(left, int | float) and hasattr(left, "__len__") and hasattr(right, "__len__"):
                _check_joined(left, len(left) + len(right))
        elif operator == "*" and not all(isinstance(value, int | float) for value in (left, right)):
            count, repeated = (right, left) if isinstance(right, int) else (left, right)
            if isinstance(count, int) and count > MAX_FACTOR:
                raise SecurityError(f"nothing is repeated more than {MAX_FACTOR} times")
            if isinstance(count, int) and hasattr(repeated, "__len__"):
                _check_joined(repeated, count * len(repeated))
        compute = functools.partial(super().call_binop, context, operator)
        escapes = hasattr(left, "__html__") or hasattr(right, "__html__")
        if escapes or (operator == "%" and isinstance(left, str)):
            return checked(self._marks.apply(compute, left, right))
        return checked(compute(left, right))

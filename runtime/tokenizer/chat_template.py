"""Renders chat templates: the checkpoint's jinja, in a sandbox, so that user text never becomes a special token.

A template writes role tags and other special tokens as text. Messages must not be able to do the same. Therefore every
special token in the template's own text is replaced, before it is compiled, by a random mark of this process. The
tokenizer accepts only these marks as special tokens (docs/research/decoding-rules.md#special-tokens). Where a template
compares, searches or cuts text, it sees the special tokens (`runtime/tokenizer/marked_text.py`).
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import Environment, TemplateError, meta, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser

from runtime.errors import ConfigError, RequestError
from runtime.request.validation import refuse
from runtime.tokenizer.marked_text import Marks
from runtime.tokenizer.template_sandbox import (
    CHECKED,
    BudgetExceeded,
    RenderBudget,
    Sandbox,
    check_size,
    join_bounded,
)

# Values in these nodes are compared and not written.
_CONTROL_NODES = (nodes.Compare, nodes.Test, nodes.Slice)
RENDERING_ERRORS = (
    TemplateError, SecurityError, TypeError, ValueError, LookupError, ArithmeticError, AttributeError, RecursionError,
)  # fmt: skip
_KEYS = {(nodes.Pair, "key"), (nodes.Getitem, "arg")}  # fields with which values are found
PROBE = "content probe"
_CALL = {"id": "call_1", "type": "function", "function": {"name": "probe", "arguments": {}}}
PROBES: dict[str, list[dict[str, Any]]] = {  # a conversation with a message of each role
    "user": [{"role": "user", "content": ""}],
    "system": [{"role": "system", "content": ""}, {"role": "user", "content": "a"}],
    "assistant": [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": ""},
        {"role": "user", "content": "a"},
    ],
    "tool": [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "", "tool_calls": [_CALL]},
        {"role": "tool", "content": ""},
    ],
}
# Filters and methods that write arguments -> the first one that they write.
_WRITING_FILTERS = {"default": 0, "d": 0, "format": 0, "join": 0, "replace": 1}
_WRITING_METHODS = {"format": 0, "get": 1, "join": 0, "replace": 1}


class Generation(Extension):
    """``{% generation %}``: marks an assistant message for training. Here it is only a scope, as in transformers."""

    tags = {"generation"}  # noqa: RUF012 (jinja's declaration)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        scope = nodes.Scope(lineno=next(parser.stream).lineno)
        scope.body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return [scope]


class ChatTemplate:
    """A compiled template.

    Attributes:
        supports_tools: Whether it uses the variable `tools`.
    """

    def __init__(self, source: str, marks: Marks, variables: Mapping[str, str]) -> None:
        """Compiles a template.

        Args:
            source: The jinja source.
            marks: Marks of the special tokens.
            variables: Named special tokens (bos_token, eos_token) that a template may write.

        Raises:
            ConfigError: `source` is not a template.
        """
        self._renders_calls = "tool_calls" in source
        env = Sandbox(marks, trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", Generation])
        env.guard_filters({"tojson": tojson})
        env.globals |= {"raise_exception": _raise, "strftime_now": _strftime_now}
        self._marks = marks
        try:
            tree = env.parse(source)
            # This folds constants of the tree that it gets, so that texts would be within lists.
            self.supports_tools = "tools" in meta.find_undeclared_variables(env.parse(source))
            self._mark(tree)
            _check_loops(tree, env)
            self._template = env.from_string(env.replace_operators(tree))
        except TemplateError as error:
            raise ConfigError(f"the chat template does not compile: {error}") from None
        except (MemoryError, RecursionError, ValueError) as error:
            raise ConfigError(f"the chat template is too large to compile: {type(error).__name__}") from None
        self._variables = {name: marks.marked(text) for name, text in variables.items()}
        self._part_roles = frozenset(role for role in PROBES if self._reads_parts_only(role))
        # A template without the literal 'tool' may write tool results as it writes messages of any role. This counts
        # only if it also writes tool calls.
        self._renders_results = re.search(r"""['"]tool['"]""", source) is not None or (
            self._renders_calls and ("tool" in self._part_roles or self._writes("tool", PROBE) is True)
        )

    def render(
        self, messages: Sequence[Mapping[str, Any]], kwargs: Mapping[str, Any], budget: RenderBudget | None = None
    ) -> str:
        """Renders a conversation as text with marks.

        Raises:
            RequestError: The template refuses or cannot render it, or exceeds `budget`.
        """
        reserved = {"messages", "raise_exception", "strftime_now", *self._variables}
        if clash := reserved & kwargs.keys():
            name = min(clash)
            raise refuse(f"chat_template_kwargs.{name}", "this name is the template's own; leave it out")
        values = {"add_generation_prompt": True, "tools": None, "documents": None, **kwargs, **self._variables}
        try:
            adapted = [dict(m) if self._renders_calls else _with_calls(m) for m in messages]
            if not self._renders_results:
                adapted = [_as_user_message(m) if m["role"] == "tool" else m for m in adapted]
            adapted = [_with_parts(m) if m["role"] in self._part_roles else m for m in adapted]
            return (budget or RenderBudget()).gather(self._template.generate(values, messages=adapted))
        except BudgetExceeded as spent:
            raise refuse("messages", f"the model's chat template {spent} for these messages; shorten them") from None
        except MemoryError:
            reason = "the model's chat template needs too much memory for these messages; shorten them"
            raise refuse("messages", reason) from None
        except RENDERING_ERRORS as e:
            reason = self._marks.unmarked(" ".join(str(e).split()))[:300]
            raise RequestError(
                f"messages: the model's chat template cannot render them: {reason or type(e).__name__}",
                param="messages",
                detail=reason,
            ) from None

    def _reads_parts_only(self, role: str) -> bool:
        """Returns whether the template writes a message of `role` only if its content is a list of parts."""
        parts = [{"type": "text", "text": PROBE}]
        return self._writes(role, PROBE) is False and self._writes(role, parts) is True

    def _writes(self, role: str, content: Any) -> bool | None:
        """Returns whether the template writes a message of `role` with the probe; None if it fails on it."""
        messages = [{**message, "content": content} if message["role"] == role else message for message in PROBES[role]]
        values = {"add_generation_prompt": True, "tools": None, "documents": None, **self._variables}
        try:
            text = RenderBudget().gather(self._template.generate(values, messages=messages))
        except (BudgetExceeded, *RENDERING_ERRORS):
            return None
        return PROBE in text

    def _mark(self, node: nodes.Node) -> None:
        """Puts marks into the texts that `node` can write."""
        if isinstance(node, _CONTROL_NODES):
            return
        if isinstance(node, nodes.TemplateData):
            node.data = self._marks.marked(node.data)
        elif isinstance(node, nodes.Const) and isinstance(node.value, str):
            node.value = self._marks.marked(node.value)
        read = _read_arguments(node)
        for field, child in _children(node):
            if field != "test" and (type(node), field) not in _KEYS and not any(child is each for each in read):
                self._mark(child)


def _check_loops(tree: nodes.Template, env: Environment) -> None:
    """Makes every loop check the budget through `CheckedIterable`."""
    for loop in tree.find_all(nodes.For):
        loop.iter = nodes.Filter(loop.iter, CHECKED, [], [], None, None, lineno=loop.lineno, environment=env)


def _read_arguments(node: nodes.Node) -> list[nodes.Node]:
    """Returns the arguments that a call only compares with text, as ``content.split(...)``, and does not write."""
    if isinstance(node, nodes.Filter):
        first = _WRITING_FILTERS.get(node.name)
    elif isinstance(node, nodes.Call) and isinstance(node.node, nodes.Getattr):
        first = _WRITING_METHODS.get(node.node.attr)
    else:
        return []
    return [*node.args[:first], *(node.kwargs if first is None else [])]


def _children(node: nodes.Node) -> list[tuple[str, nodes.Node]]:
    found: list[tuple[str, nodes.Node]] = []
    for field, value in node.iter_fields():
        found += [(field, v) for v in (value if isinstance(value, list) else [value]) if isinstance(v, nodes.Node)]
    return found


def _with_calls(message: Mapping[str, Any]) -> dict[str, Any]:
    """Adds tool calls to the text of a message, in Hermes' format, for templates that do not write them."""
    calls = message.get("tool_calls") or ()
    texts = [f"<tool_call>\n{tojson(call['function'])}\n</tool_call>" for call in calls]
    return {**message, "content": "\n".join(filter(None, [message["content"], *texts]))}


def _as_user_message(message: dict[str, Any]) -> dict[str, Any]:
    """Converts a tool result to a user message, for templates that do not support the role `tool`."""
    return {**message, "role": "user", "content": f"<tool_response>\n{message['content']}\n</tool_response>"}


def _with_parts(message: Mapping[str, Any]) -> dict[str, Any]:
    """Converts the content to one part of type text, for templates that read parts."""
    return {**message, "content": [{"type": "text", "text": message["content"]}]}


def tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Converts a value to JSON like the filter of transformers, with the same arguments in the same order."""
    if indent is None and separators is None:
        return json.dumps(value, ensure_ascii=ensure_ascii, sort_keys=sort_keys)
    check_size(len(text) for text in separators or ())
    if indent is not None:
        check_size([indent if isinstance(indent, int) else len(indent)])
    encoder = json.JSONEncoder(
        ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys, check_circular=True
    )
    return join_bounded(encoder.iterencode(value))


def _raise(message: str) -> None:
    raise TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.datetime.now().strftime(form)

"""What a request says of tools: bodies, their checks, and what is offered to the model in the end."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, WithJsonSchema

from runtime.errors import RequestError
from runtime.parts.formats import NO_ARGUMENTS, Tool
from runtime.request.checks import refuse, shown
from runtime.server.fields import Body, said

MAX_TOOLS = 256
MAX_NAME = 128
_NAME = re.compile(r"[A-Za-z0-9_.:/-]+")
_CHOICES = ("none", "auto", "required")
_CALCULATOR = {"type": "object", "properties": {"expression": {"type": "string"}}}
TOOLS = [{"type": "function", "function": {"name": "calculator", "parameters": _CALCULATOR}}]  # an example


class Described(Body):
    """What a function does, whatever else it comes with."""

    description: Annotated[str | None, said("when and how to use it", "Works out sums.")] = None
    parameters: Annotated[
        dict[str, Any] | None,
        said("JSON schema of the arguments", _CALCULATOR),
    ] = None
    strict: Annotated[bool | None, said("arguments always fit the schema", False)] = None


class FunctionItem(Described):
    name: Annotated[str, said("what a call names", "calculator")]


class ToolItem(Body):
    """A function that the model may call."""

    type: Annotated[str, said("always `function`", "function")]
    function: Annotated[FunctionItem | None, said("which one", {"name": "calculator"})] = None


_FUNCTION = {"type": "object", "properties": {"name": {"type": "string"}}}
_NAMED = {"type": "object", "properties": {"type": {"const": "function"}, "function": _FUNCTION}}
ToolItems = Annotated[list[ToolItem], Field(max_length=MAX_TOOLS, fail_fast=True)]
ToolChoice = Annotated[
    Any,
    said("none, auto, required, or a function's name in an object", "auto"),
    WithJsonSchema({"anyOf": [{"type": "string", "enum": list(_CHOICES)}, _NAMED, {"type": "null"}]}),
]


@dataclass(frozen=True)
class Tooling:
    """The tools of a request.

    Attributes:
        tools: that are offered, with where the schema of each stood in the request; none where the model may call none.
        forced: the answer has to be calls. named: of this tool alone.
        single: of one call at most.
        param: the field that asks for what is forced, or for the tools.
    """

    tools: Sequence[tuple[str, Tool]] = ()
    forced: bool = False
    named: str = ""
    single: bool = False
    param: str = "tools"

    @property
    def strict(self) -> bool:
        return any(tool.strict for _, tool in self.tools)

    @property
    def callable(self) -> Sequence[tuple[str, Tool]]:
        """Those that the answer may call."""
        return [found for found in self.tools if not self.named or found[1].name == self.named]


NO_TOOLS = Tooling()


def tooling(items: Sequence[ToolItem] | None, choice: object, parallel: bool | None) -> Tooling:
    """As OpenAI's chat has them. Raises RequestError."""
    wanted, named = chosen(choice)
    tools = [_tool(item, f"tools[{i}]") for i, item in enumerate(items or ())]
    distinct(tools, "function.name")
    return offered(tools, wanted, named, single=parallel is False)


def offered(
    tools: Sequence[tuple[str, Tool]],
    wanted: Literal["none", "auto", "required"],
    named: str = "",
    *,
    single: bool = False,
    param: str = "tool_choice",
) -> Tooling:
    """Checked tools with the choice among them, which `param` named. Raises RequestError where that cannot be kept."""
    if wanted == "none":
        return NO_TOOLS
    if wanted == "required":
        if not tools:
            raise refuse(param, "asks for a call, and there are no tools; send tools, or leave it out")
        names = [tool.name for _, tool in tools]
        if named and named not in names:
            raise refuse(param, f"{shown(named)} is not among the tools: {', '.join(names)[:200]}")
        return Tooling(tools, True, named, single or bool(named), param)
    return Tooling(tools, single=single)


def distinct(tools: Sequence[tuple[str, Tool]], field: str) -> None:
    """Raises RequestError where two tools have one name, which is in `field` of each."""
    names = [tool.name for _, tool in tools]
    for i, name in enumerate(names):
        if name in names[:i]:
            raise refuse(
                f"tools[{i}].{field}", f"{shown(name)} is also that of tools[{names.index(name)}]; give another"
            )


def chosen(choice: object) -> tuple[Literal["none", "auto", "required"], str]:
    """What is wanted, and the name of the one tool that is."""
    if choice is None:
        return "auto", ""
    if choice == "none" or choice == "auto" or choice == "required":
        return choice, ""
    if isinstance(choice, dict) and choice.get("type", "function") == "function":
        function = choice.get("function")
        name = function.get("name") if isinstance(function, dict) else choice.get("name")
        if isinstance(name, str) and name:
            return "required", name
        raise refuse("tool_choice.function.name", "is missing; name one of the tools")
    raise refuse(
        "tool_choice",
        f'{shown(choice)} is not built in this version; it is none, auto, required or {{"type": "function", '
        '"function": {"name": ...}}',
    )


def _tool(item: ToolItem, path: str) -> tuple[str, Tool]:
    if item.type != "function":
        raise refuse(f"{path}.type", f"{shown(item.type)} tools are not built in this version, only function")
    function = item.function
    if function is None:
        raise refuse(f"{path}.function", "is missing; describe the function")
    return make_tool(
        f"{path}.function", "parameters", function.name, function.description, function.parameters, function.strict,
        function.model_extra,
    )  # fmt: skip


def make_tool(
    path: str,
    field: str,
    name: str,
    description: str | None,
    parameters: dict[str, Any] | None,
    strict: bool | None,
    extra: dict[str, Any] | None = None,
) -> tuple[str, Tool]:
    """A checked tool, and where the schema of its parameters stood. `path`: where its name did, with that schema in
    `field`."""
    if not name or len(name) > MAX_NAME or not _NAME.fullmatch(name):
        raise refuse(
            f"{path}.name", f"{shown(name)} is not a name of 1 to {MAX_NAME} letters, digits, and any of _ - . : /"
        )
    if parameters and parameters.get("type", "object") != "object":
        raise refuse(f"{path}.{field}", f"the schema is of {shown(parameters['type'])}; arguments are always an object")
    told: dict[str, Any] = {"name": name}
    if description is not None:
        told["description"] = description
    if parameters is not None:
        told["parameters"] = parameters
    told |= {key: value for key, value in (extra or {}).items() if value is not None}
    tool = Tool(
        name=name,
        description=description or "",
        parameters=parameters or NO_ARGUMENTS,
        strict=bool(strict),
        item={"type": "function", "function": told},
    )
    return f"{path}.{field}", tool


def without_functions(functions: object, call: object) -> None:
    """OpenAI's older fields are no matter where nothing is to be called. Raises RequestError where it is."""
    if functions and call != "none":
        raise RequestError(
            "functions: are the older form of tools, which is not built; send tools, and tool_choice in place of "
            "function_call",
            param="functions",
        )
    if call not in (None, "none", "auto"):
        raise refuse("function_call", "is the older form of tool_choice; send tools and that")

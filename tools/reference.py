"""Every field of the resource as Markdown: ``python -m tools.reference`` prints docs/fields.md."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from tools.crd import schema
from tools.schema import Schema
from unmask_operator.objects import KIND

_HEAD = f"""# Every field of a {KIND}

Written by `make crds` from the operator's models. A default is the operator's and not written into the resource (but
for `replicas`, which the scale subresource needs). A field without one may be left out unless it is marked as required;
its description says what then holds. The API server refuses what breaks a bound or a rule, with its sentence.
`kubectl explain dlms.spec` shows the same.
"""


def page() -> str:
    """The whole page."""
    whole = schema(defaults=True)
    name = [_rule(rule) for rule in whole["x-kubernetes-validations"]]
    lines = [_HEAD, *(f"* {sentence}." for sentence in name), ""]
    for part in ("spec", "status"):
        for path, section in _sections(part, whole["properties"][part]):
            lines += _section(path, section)
    return "\n".join(lines).rstrip() + "\n"


def _sections(path: str, node: Schema) -> Iterator[tuple[str, Schema]]:
    """A section and those inside it, by path; `[]` stands for the entries of a list."""
    yield path, node
    for name, child in node["properties"].items():
        below = f"{path}.{name}"
        if child.get("type") == "array":
            child, below = child["items"], f"{below}[]"
        if "properties" in child:
            yield from _sections(below, child)


def _section(path: str, node: Schema) -> list[str]:
    lines = [f"## {path}" if path.count(".") == 0 else f"### {path}", "", node["description"], ""]
    lines += ["| Field | Type | Default | Bounds | Description |", "|---|---|---|---|---|"]
    required = node.get("required", ())
    for name, child in node["properties"].items():
        default = "required" if name in required else _code(child["default"]) if "default" in child else ""
        cells = (f"`{name}`", _type(child), default, _bounds(child), child["description"])
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    rules = node.get("x-kubernetes-validations", ())
    lines += ["", *([f"* {_rule(rule)}." for rule in rules] + [""] if rules else [])]
    return lines


def _code(value: Any) -> str:
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _type(node: Schema) -> str:
    if node.get("x-kubernetes-int-or-string"):
        return "integer or string"
    if "items" in node:
        return f"list of {_type(node['items'])}"
    if isinstance(values := node.get("additionalProperties"), dict):
        return f"map of {_type(values)}"
    return str(node["type"])


def _bounds(node: Schema) -> str:
    """What a value may be, and then what the entries of a list or map may be."""
    found = []
    if "enum" in node:
        found.append(", ".join(map(_code, node["enum"])))
    if "minimum" in node and not node.get("x-kubernetes-int-or-string"):
        word = "above" if node.get("exclusiveMinimum") else "at least"
        found.append(f"{word} {node['minimum']}")
    for key, sentence in _LIMITS.items():
        if key in node:
            found.append(sentence.format(node[key]))
    if "pattern" in node:
        found.append(f"`{node['pattern']}`")
    for key in ("items", "additionalProperties"):
        inside = node.get(key)
        if inside is not None and "properties" not in inside and (text := _bounds(inside)):
            found.append(f"each: {text}")
    return "; ".join(found)


_LIMITS = {
    "maximum": "at most {}",
    "maxLength": "at most {} characters",
    "maxItems": "at most {} entries",
    "maxProperties": "at most {} entries",
}


def _rule(rule: dict[str, str]) -> str:
    field = rule.get("fieldPath", "").removeprefix(".")
    return f"`{field}`: {rule['message']}" if field else rule["message"]


if __name__ == "__main__":
    sys.stdout.write(page())

"""The table of decoding fields as Markdown: ``python -m runtime.samplers.markdown`` writes it into docs/decoding.md."""

from __future__ import annotations

from pathlib import Path

from runtime.engine.description import Field
from runtime.samplers.base import get_rule, rules
from runtime.strategies.multi_bd import MultiBlock

BEGIN, END = "<!-- fields: python -m runtime.samplers.markdown -->", "<!-- end of fields -->"


def field_table() -> str:
    """Every field that a rule or `multi_bd` declares, with who reads it."""
    readers: dict[str, tuple[Field, list[str]]] = {}
    for key in rules():
        for field in get_rule(key).fields:
            readers.setdefault(field.name, (field, []))[1].append(key)
    rows = [_row(field, "all" if len(keys) == len(rules()) else ", ".join(keys)) for field, keys in readers.values()]
    rows += [_row(field, "all") for field in MultiBlock.fields]
    return "\n".join(["| Field | Value | Default | Rules | Meaning |", "|---|---|---|---|---|", *sorted(rows)])


def _row(field: Field, readers: str) -> str:
    return f"| `{field.name}` | {_values(field)} | {_default(field)} | {readers} | {field.help} |"


def _values(field: Field) -> str:
    if field.kind == "choice":
        return ", ".join(f"`{word}`" for word in field.choices)
    if field.kind == "flag":
        return "`true`, `false`"
    most = "" if field.high is None or field.high >= 2**31 else f" to {field.high:,.0f}"
    least = f"above {field.low:g}" if field.above_low else f"{field.low:g}"
    return f"{least}{most}" if most else f"{least} or more"


def _default(field: Field) -> str:
    if field.per_block:
        return f"{'' if field.default == 1 else f'{field.default} x '}block size"
    return f"`{field.default}`" if field.kind == "choice" else f"{field.default}"


def with_table(page: str) -> str:
    """`page` with the table between its marks."""
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n\n{field_table()}\n\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    path = Path(__file__).parents[2] / "docs" / "decoding.md"
    path.write_text(with_table(path.read_text(encoding="utf-8")), encoding="utf-8")

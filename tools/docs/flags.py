"""Generates the tables of docs/reference/flags.md: ``python -m tools.docs.flags``. Has helpers for other tables."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from runtime.config import FLAGS, Flag

BEGIN, END = "<!-- flags: python -m tools.docs.flags -->", "<!-- end of flags -->"


def flag_table() -> str:
    """Returns a heading and a table for each group of flags."""
    lines = []
    for group in dict.fromkeys(flag.group for flag in FLAGS):
        lines += ["", f"## {group[0].upper()}{group[1:]}", "", "| Flag | Default | Meaning |", "|---|---|---|"]
        lines += [_row(flag) for flag in FLAGS if flag.group == group]
    return "\n".join(lines[1:])


def _row(flag: Flag) -> str:
    names = ", ".join(f"`--{name}`" for name in flag.spellings)
    meaning, _, described = flag.help.replace("|", "/").partition("; default: ")
    default = described if flag.default in (None, ()) else f"`{str(flag.default).lower()}`"
    choices = f" ({', '.join(f'`{c}`' for c in flag.choices)})" if flag.choices else ""
    return f"| {names} | {default} | {meaning}{choices} |"


def with_table(page: str) -> str:
    """Returns `page` with the table between its markers."""
    return put_between(page, BEGIN, END, flag_table())


def put_between(page: str, begin: str, end: str, table: str) -> str:
    """Returns `page` with the text between the markers replaced by `table`."""
    before, rest = page.split(begin)
    return f"{before}{begin}\n\n{table}\n\n{end}{rest.split(end)[1]}"


def rewrite(name: str, change: Callable[[str], str]) -> None:
    """Rewrites a page of docs/ with `change`."""
    path = Path(__file__).parents[2] / "docs" / name
    path.write_text(change(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    rewrite("reference/flags.md", with_table)

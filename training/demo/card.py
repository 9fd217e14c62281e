"""Prints the scores of a run as the tables of the model card: ``python -m training.demo.card DIR``.

DIR is the directory of ``training.demo.run --out``.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

COLUMNS = ("quality", "balanced", "speed", "edit", "fp8", "int8", "int4")
_WITH_SPEED = ("quality", "balanced", "edit")  # each is followed by a column with tokens per forward


def scores(measured: Mapping[str, Any]) -> str:
    """Returns a Markdown table: a row per task with accuracy, and tokens per forward of `_WITH_SPEED`.

    Args:
        measured: figures of `runtime.bench eval --json` by the names of `COLUMNS`, with the same tasks.
    """
    rows_by_task = {name: {row["task"]: row for row in measured[name]["tasks"]} for name in COLUMNS}
    head = ["task", "kind"]
    for name in COLUMNS:
        head += [f"{name}, %", "tokens per forward"] if name in _WITH_SPEED else [f"{name}, %"]
    lines = [head, ["---"] * len(head)]
    for row in sorted(measured["quality"]["tasks"], key=lambda row: (row["kind"] != "short", row["task"])):
        lines.append(_cells(row["task"], row["kind"], {name: rows_by_task[name][row["task"]] for name in COLUMNS}))
    lines.append(_cells("pooled", "", {name: measured[name]["pooled"] for name in COLUMNS}))
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def _cells(task: str, kind: str, figures: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Returns the cells of a row. `figures`: accuracy and tokens per forward by the names of `COLUMNS`."""
    cells = [task, kind]
    for name in COLUMNS:
        cells.append(f"{100 * figures[name]['accuracy']:.1f}")
        if name in _WITH_SPEED:
            cells.append(f"{figures[name]['tokens_per_forward']:.2f}")
    return cells


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Print the scores of a run as the tables of the model card.")
    parser.add_argument("run", type=Path, metavar="DIR", help="directory of training.demo.run --out")
    directory = parser.parse_args(argv).run

    def read(name: str) -> Any:
        return json.loads((directory / f"{name}.json").read_text())

    print(scores({name: read(name) for name in COLUMNS}))
    people = (
        f"{row['task']} {row['accuracy'] * row['count']:.0f} of {row['count']}" for row in read("people")["tasks"]
    )
    plots = (f"{row['prompt']!r} {len(row['plots'])}" for row in read("plots")["requests"])
    print(f"\nRight answers: {', '.join(people)}. Plots: {', '.join(plots)}.")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

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


def scores(measured: Mapping[str, Any]) -> str:
    """Returns a Markdown table: a row per task with accuracy, and tokens per forward of `quality` and `edit`.

    Args:
        measured: figures of `runtime.bench eval --json` by the names of `COLUMNS`, with the same tasks.
    """
    by_task = {name: {row["task"]: row for row in measured[name]["tasks"]} for name in COLUMNS}
    head = ["task", "kind"]
    for name in COLUMNS:
        head += [f"{name}, %", "tokens per forward"] if name in ("quality", "edit") else [f"{name}, %"]
    lines = [head, ["---"] * len(head)]
    for row in sorted(measured["quality"]["tasks"], key=lambda row: (row["kind"] != "short", row["task"])):
        cells = [row["task"], row["kind"]]
        for name in COLUMNS:
            figures = by_task[name][row["task"]]
            cells.append(f"{100 * figures['accuracy']:.1f}")
            if name in ("quality", "edit"):
                cells.append(f"{figures['tokens_per_forward']:.2f}")
        lines.append(cells)
    pooled = (
        f"{name} {100 * measured[name]['pooled']['accuracy']:.1f} % at "
        f"{measured[name]['pooled']['tokens_per_forward']:.2f} tokens per forward"
        for name in COLUMNS
    )
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines) + f"\n\nPooled: {', '.join(pooled)}."


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Print the scores of a run as the tables of the model card.")
    parser.add_argument("run", type=Path, metavar="DIR", help="of training.demo.run --out")
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

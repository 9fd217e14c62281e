"""4x4 sudoku: rows, columns and the four 2x2 boxes hold 1 to 4 once each. Empty cells are written "_"."""

from __future__ import annotations

import functools
import itertools
import random

from runtime.bench.scoring import is_solved
from training.demo.tasks.base import Sample, single, task
from training.demo.tasks.phrasing import ask, typed


@functools.cache
def solutions() -> tuple[str, ...]:
    """Returns all 288 solved grids."""
    rows = ["".join(p) for p in itertools.permutations("1234")]
    halves = [a + b for a in rows for b in rows if {*a[:2], *b[:2]} == set("1234")]
    return tuple(top + bottom for top in halves for bottom in halves if is_solved(top + bottom))


@functools.cache
def _grids_with() -> dict[tuple[int, str], int]:
    """Returns (cell, digit) -> bitmask of the `solutions()` that have it."""
    grids = solutions()
    return {(i, d): sum(1 << k for k, g in enumerate(grids) if g[i] == d) for i in range(16) for d in "1234"}


def _lines(cells: str) -> str:
    return "\n".join(cells[i : i + 4] for i in range(0, 16, 4))


_CORES = (
    "solve this sudoku",
    "solve this 4x4 sudoku",
    "solve the sudoku",
    "solve this small sudoku",
    "fill in this sudoku",
    "fill in the missing numbers",
    "complete this sudoku",
    "complete the sudoku",
    "finish this sudoku",
    "solve this puzzle",
)
_ASKS = (
    "Solve this sudoku",
    "Solve this sudoku",
    "Solve this sudoku",
    "Fill in this sudoku",
    "Solve this 4x4 sudoku",
    "Complete this sudoku",
    "Please solve this sudoku",
    "Here is a sudoku, solve it",
    "Sudoku",
    "A sudoku for you",
    "4x4 sudoku",
    "What is the solution of this sudoku",
)


def _shown(rng: random.Random, lines: str) -> str:
    """Returns a variant of the grid, with other signs for empty cells, and with or without spaces."""
    lines = lines.replace("_", rng.choice(("_", "_", "_", ".", "0", "?", "-", "x")))
    return "\n".join(" ".join(line) for line in lines.split("\n")) if rng.random() < 0.25 else lines


@task("sudoku", "long", "sudoku")
def sudoku(rng: random.Random) -> Sample:
    grid = rng.choice(solutions())
    fits = 0
    while fits.bit_count() != 1:  # few clues may have several solutions: draw until there is one
        clue_cells = set(rng.sample(range(16), rng.randint(5, rng.choice((11, 11, 11, 15)))))
        fits = functools.reduce(int.__and__, (_grids_with()[i, grid[i]] for i in clue_cells))
    clues = "".join(c if i in clue_cells else "_" for i, c in enumerate(grid))
    return single("sudoku", ask_to_solve(rng, _lines(clues)), _lines(grid), givens=clues)


def ask_to_solve(rng: random.Random, lines: str) -> str:
    """Returns a request to solve the grid, whose empty cells are "_"."""
    shown = _shown(rng, lines)
    kind = rng.random()
    if kind < 0.5:
        return typed(rng, rng.choice(_ASKS)) + ":\n" + shown
    if kind < 0.85:
        return ask(rng, rng.choice(_CORES)) + "\n" + shown
    return shown + "\n" + ask(rng, rng.choice(_CORES))

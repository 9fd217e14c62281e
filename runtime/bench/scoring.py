"""Checkers of answers: each gets the expected answer, facts of the prompt, and the text of the model."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from runtime.bench.stories import is_story

Checker = Callable[[str, Mapping[str, str], str], bool]

_UNITS = (  # of a 4x4 sudoku: rows, columns and boxes hold 1 to 4 once each
    [tuple(range(4 * r, 4 * r + 4)) for r in range(4)]
    + [tuple(range(c, 16, 4)) for c in range(4)]
    + [(b, b + 1, b + 4, b + 5) for b in (0, 2, 8, 10)]
)


def is_solved(cells: str) -> bool:
    """Returns whether 16 cells of a sudoku, row by row, obey every rule."""
    return len(cells) == 16 and all(sorted(cells[i] for i in unit) == list("1234") for unit in _UNITS)


def _keeps_clues(clues: str, text: str) -> bool:
    """Returns whether the text is a valid grid in four lines with these clues (16 cells, "_" if empty)."""
    lines = text.strip().split("\n")
    if [len(line) for line in lines] != [4] * 4:
        return False
    cells = "".join(lines)
    return is_solved(cells) and all(g in ("_", c) for g, c in zip(clues, cells, strict=True))


def _json(text: str) -> Any:
    """Returns the value of a JSON text, or NaN, which equals no value."""
    try:
        return json.loads(text)
    except ValueError:
        return float("nan")


def _refuses(answer: str, text: str) -> bool:
    """Returns whether the text is the beginning of the refusal, with its first sentence at least."""
    return text.strip().startswith(answer.split(".")[0]) and answer.startswith(text.strip())


def _call(answer: str, text: str) -> bool:
    """Returns whether the text is the expected tool call and nothing else."""
    head, tail = "<tool_call>", "</tool_call>"
    text = text.strip()
    if not (text.startswith(head) and text.endswith(tail)):
        return False
    return bool(_json(text[len(head) : -len(tail)]) == _json(answer[len(head) : -len(tail)]))


def _call_in_lines(answer: str, text: str) -> bool:
    """Returns whether the text is the expected tool call in lines of its own. Spaces in it do not matter."""
    form = re.compile(r"<tool_call>\n(.*)\n</tool_call>")
    expected, found = form.fullmatch(answer), form.fullmatch(text.strip())
    return bool(expected and found and _json(found[1].replace(" ", "")) == _json(expected[1].replace(" ", "")))


def _numbers(text: str) -> list[int]:
    return [int(n) for n in re.findall(r"-?\d+", text.replace(",", " "))]


def _last_number(answer: str, text: str) -> bool:
    return _numbers(re.sub(r"(?<=\d) - (?=\d)", " ", text))[-1:] == [int(answer)]


def _counts(answer: str, text: str) -> bool:
    first, last = map(int, answer.split())
    step = 1 if last >= first else -1
    return _numbers(text) == list(range(first, last + step, step))


def _letters(text: str) -> str:
    return re.sub(r"[-\s,.]", "", text).lower()


def _spells(answer: str, text: str) -> bool:
    """Returns whether all letters are separate. The text may begin with a capital."""
    return len(re.findall(r"[-\s,]", text.strip())) >= len(answer) - 1 and _letters(text) == answer.lower()


def _tabulates(answer: str, text: str) -> bool:
    """Returns whether the text has the header, a line of dashes, and every row, cell by cell."""
    rows = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in text.strip().split("\n")]
    expected = [row.split(",") for row in answer.split(";")]
    return len(rows) > 1 and all(set(c) == {"-"} for c in rows[1]) and [rows[0], *rows[2:]] == expected


def _mentions(answer: str, text: str) -> bool:
    """Returns whether the text has some sentences with all requested names."""
    return text.count(".") >= 4 and all(word.lower() in text.lower() for word in answer.split(",") if word)


CHECKERS: Mapping[str, Checker] = {
    # of the tasks
    "exact": lambda answer, _, text: text.strip() == answer.strip(),
    "call": lambda answer, _, text: _call(answer, text),
    "json": lambda answer, _, text: _json(text) == _json(answer),
    "refusal": lambda answer, _, text: _refuses(answer, text),
    "story": lambda _, facts, text: is_story(facts, text),
    "sudoku": lambda _, facts, text: _keeps_clues(facts["givens"], text),
    # of written prompts, whose answers may be worded otherwise
    "call_in_lines": lambda answer, _, text: _call_in_lines(answer, text),
    "count": lambda answer, _, text: _counts(answer, text),
    "mentions": lambda answer, _, text: _mentions(answer, text),
    "number": lambda answer, _, text: _last_number(answer, text),
    "numbers": lambda answer, _, text: _numbers(text) == [int(n) for n in answer.split()],
    "reversed": lambda answer, _, text: _letters(text) == answer[::-1].lower(),
    "says": lambda answer, _, text: answer in text,
    "spelled": lambda answer, _, text: _spells(answer, text),
    "starts": lambda answer, _, text: re.match(rf"{re.escape(answer)}\b", text.strip()) is not None,
    "table": lambda answer, _, text: _tabulates(answer, text),
}

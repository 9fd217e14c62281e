"""Prompts with checkers, phrased differently from the templates of the training, which never reads them.

Each line of a file has the kind of checker, the expected answer, and the prompt, which is the last column. Columns
before it are an earlier question and its answer.

* `everyday.tsv`: 300 prompts as people type them.
* `claimed.tsv`: 200 prompts of the kinds that the model card claims, written without the templates.
* `declined.tsv`: 120 prompts of kinds that the model does not support, with their answers. It has to decline them.
"""

from __future__ import annotations

import functools
import json
import random
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from runtime.demo.tasks.base import Sample, Task, turns
from runtime.demo.tasks.greetings import REFUSAL
from runtime.demo.tasks.sudoku import keeps_clues
from runtime.demo.tasks.tool_format import tools_text

NAMES = ("everyday", "claimed", "declined")
CALCULATOR: Mapping[str, Any] = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "Computes the value of an expression.",
        "parameters": {
            "type": "object",
            "properties": {"expression": {"type": "string", "description": "What to compute, for example 3*4"}},
            "required": ["expression"],
        },
    },
}


def _numbers(text: str) -> list[int]:
    return [int(n) for n in re.findall(r"-?\d+", text.replace(",", " "))]


def _last_number(expected: str, text: str) -> bool:
    return _numbers(re.sub(r"(?<=\d) - (?=\d)", " ", text))[-1:] == [int(expected)]


def _counts(expected: str, text: str) -> bool:
    first, last = map(int, expected.split())
    step = 1 if last >= first else -1
    return _numbers(text) == list(range(first, last + step, step))


def _lists(expected: str, text: str) -> bool:
    return _numbers(text) == [int(n) for n in expected.split()]


def _letters(text: str) -> str:
    return re.sub(r"[-\s,.]", "", text)


def _spells(expected: str, text: str) -> bool:
    """Returns whether all letters are separate. The answer may begin with a capital."""
    return len(re.findall(r"[-\s,]", text.strip())) >= len(expected) - 1 and _letters(text).lower() == expected.lower()


def _reverses(expected: str, text: str) -> bool:
    return _letters(text).lower() == expected[::-1].lower()


def _is_json(expected: str, text: str) -> bool:
    try:
        return bool(json.loads(text) == json.loads(expected))
    except json.JSONDecodeError:
        return False


def _tabulates(expected: str, text: str) -> bool:
    """Returns whether the text has the header, a line of dashes, and every row, cell by cell."""
    rows = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in text.strip().split("\n")]
    expected_rows = [row.split(",") for row in expected.split(";")]
    return len(rows) > 1 and all(set(c) == {"-"} for c in rows[1]) and [rows[0], *rows[2:]] == expected_rows


def _is_story(expected: str, text: str) -> bool:
    """Returns whether the text has some sentences with all requested names."""
    found = text.lower()
    return text.count(".") >= 4 and all(word.lower() in found for word in expected.split(",") if word)


def _calls(expected: str, text: str) -> bool:
    found = re.fullmatch(r"<tool_call>\n(.*)\n</tool_call>", text.strip())
    return found is not None and _is_json(
        json.dumps({"name": "calculator", "arguments": {"expression": expected}}), found[1].replace(" ", "")
    )


CHECKERS: Mapping[str, Callable[[str, str], bool]] = {
    "number": _last_number,
    "starts": lambda expected, text: re.match(rf"{re.escape(expected)}\b", text.strip()) is not None,
    "count": _counts,
    "numbers": _lists,
    "spelled": _spells,
    "reversed": _reverses,
    "json": _is_json,
    "table": _tabulates,
    "sudoku": keeps_clues,
    "story": _is_story,
    "says": lambda expected, text: expected in text,
    "calls": _calls,
    "declined": lambda _, text: text.strip() == REFUSAL,
}


@functools.cache
def prompts(name: str = "everyday") -> tuple[Sample, ...]:
    """Returns all prompts of a file, in order."""
    found = []
    for row in Path(__file__).with_name(f"{name}.tsv").read_text(encoding="utf-8").splitlines():
        kind, expected, *contents = (part.replace("\\n", "\n") for part in row.split("\t"))
        messages = turns(*contents)
        if kind == "calls":
            messages = ({"role": "system", "content": tools_text([CALCULATOR])}, *messages)
        found.append(Sample(name, messages, expected, {"kind": kind}))
    return tuple(found)


def check(sample: Sample, text: str) -> bool:
    return CHECKERS[sample.facts["kind"]](sample.answer, text)


def chosen(count: int, seed: int | str = 0, name: str = "everyday") -> list[Sample]:
    """Returns `count` random prompts of a file, or all if there are fewer."""
    every = list(prompts(name))
    return random.Random(f"{name}/{seed}").sample(every, min(count, len(every)))


def _make(name: str, rng: random.Random) -> Sample:
    return rng.choice(prompts(name))


TASKS: Mapping[str, Task] = {name: Task(name, "short", functools.partial(_make, name), check) for name in NAMES}

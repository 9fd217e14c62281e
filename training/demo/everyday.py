"""Prompts as people write them, phrased differently from the templates of the training, which never reads them.

Each line of a file has the kind of checker, the expected answer, and the prompt, which is the last column. Columns
before it are an earlier question and its answer. `declined` is a prompt that the model has to decline.

* `everyday.tsv`: 300 prompts as people type them.
* `claimed.tsv`: 200 prompts of the kinds that the model card claims, written without the templates.
* `declined.tsv`: 120 prompts of kinds that the model does not support, with their answers.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runtime.bench.held_out import Prompt
from training.demo.tasks.base import turns
from training.demo.tasks.greetings import REFUSAL
from training.demo.tasks.tool_format import call_text, tools_text

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


@functools.cache
def prompts(name: str) -> tuple[Prompt, ...]:
    """Returns all prompts of a file, in order."""
    found = []
    for row in Path(__file__).with_name(f"{name}.tsv").read_text(encoding="utf-8").splitlines():
        check, answer, *contents = (part.replace("\\n", "\n") for part in row.split("\t"))
        messages = tuple(map(dict, turns(*contents)))
        facts = {}
        if check == "declined":
            check, answer = "exact", REFUSAL
        elif check == "sudoku":
            facts = {"givens": answer}
        elif check == "calls":
            check, answer = "call_in_lines", call_text("calculator", {"expression": answer})
            messages = ({"role": "system", "content": tools_text([CALCULATOR])}, *messages)
        found.append(Prompt(name, "written", messages, answer, check, facts))
    return tuple(found)

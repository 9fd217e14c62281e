"""Prompts that are held out of the training of the demo model, with their expected answers.

`held_out.jsonl` has one prompt per line. ``python -m training.demo.held_out`` in a checkout writes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec

from runtime.bench.scoring import CHECKERS
from runtime.errors import ConfigError

HELD_OUT = Path(__file__).with_name("held_out.jsonl")
Kind = Literal["short", "long", "written"]


class Prompt(msgspec.Struct, frozen=True, omit_defaults=True):
    """A conversation that ends with a user message or the result of a tool.

    Attributes:
        kind: length of the answers of its task; "written" if people wrote the prompts.
        answer: the expected answer, in the form that the checker reads.
        check: a key of CHECKERS.
        facts: what the checker reads besides the answer.
    """

    task: str
    kind: Kind
    messages: tuple[dict[str, str], ...]
    answer: str
    check: str = "exact"
    facts: Mapping[str, str] = {}

    def is_right(self, text: str) -> bool:
        return CHECKERS[self.check](self.answer, self.facts, text)


class Task(msgspec.Struct, frozen=True):
    """Prompts of one task, at least one."""

    name: str
    prompts: tuple[Prompt, ...]

    @property
    def kind(self) -> Kind:
        return self.prompts[0].kind


def read_tasks(path: Path = HELD_OUT) -> dict[str, Task]:
    """Returns the tasks of a file by name, in its order. Raises ConfigError if it has no such prompts."""
    try:
        prompts = msgspec.json.Decoder(Prompt).decode_lines(path.read_bytes())
    except (OSError, msgspec.MsgspecError) as error:
        raise ConfigError(f"{path} has no prompts: {error}; write it with training.demo.held_out") from None
    tasks: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        if prompt.check not in CHECKERS:
            raise ConfigError(f"{path}: check: {prompt.check!r} is not one of {', '.join(CHECKERS)}")
        tasks.setdefault(prompt.task, []).append(prompt)
    return {name: Task(name, tuple(found)) for name, found in tasks.items()}

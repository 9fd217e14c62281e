"""Base of the demo tasks: seeded generators of conversations with a correct answer, and checkers."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from runtime.bench.held_out import Prompt

HELD_OUT_ONE_IN = 8  # one in this many prompts is held out of the training
_PATIENCE = 200_000  # draws without a new prompt after which a task is too small


@dataclass(frozen=True)
class Sample:
    """A conversation that ends with a user message, one correct answer, and facts for the checker.

    Attributes:
        asks: the sample of another task with which this conversation ends, if any.
    """

    task: str
    messages: tuple[Mapping[str, str], ...]
    answer: str
    facts: Mapping[str, str] = field(default_factory=dict)
    asks: Sample | None = None

    @property
    def held_out(self) -> bool:
        """Whether the prompt belongs to the held-out split, by a hash of the prompt, or of `asks` if set."""
        if self.asks is not None:
            return self.asks.held_out
        text = "\n".join(f"{m['role']}: {m['content']}" for m in self.messages)
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") % HELD_OUT_ONE_IN == 0


@dataclass(frozen=True)
class Task:
    """A task.

    Attributes:
        make: returns a random sample of either split.
        checker: key of the checker of answers, in `runtime.bench.scoring`.
    """

    name: str
    kind: Literal["short", "long"]
    make: Callable[[random.Random], Sample]
    checker: str = "exact"

    def prompt(self, sample: Sample) -> Prompt:
        """Returns the sample as benchmarks read it. The checker is that of the task with which it ends."""
        asked = sample.asks or sample
        checker = all_tasks()[asked.task].checker
        return Prompt(self.name, self.kind, tuple(map(dict, sample.messages)), sample.answer, checker, asked.facts)

    def check(self, sample: Sample, text: str) -> bool:
        """Returns whether an answer to the sample is correct."""
        return self.prompt(sample).is_right(text)


_TASKS: dict[str, Task] = {}


def task(
    name: str, kind: Literal["short", "long"], checker: str = "exact"
) -> Callable[[Callable[[random.Random], Sample]], Callable[[random.Random], Sample]]:
    """Registers the decorated generator as a task."""

    def register(make: Callable[[random.Random], Sample]) -> Callable[[random.Random], Sample]:
        if name in _TASKS:
            raise ValueError(f"demo task {name!r} is registered twice")
        _TASKS[name] = Task(name, kind, make, checker)
        return make

    return register


def all_tasks() -> dict[str, Task]:
    return dict(_TASKS)


def single(task_name: str, prompt: str, answer: str, **facts: str) -> Sample:
    """Returns a sample with one user message."""
    return Sample(task_name, ({"role": "user", "content": prompt},), answer, facts)


def turns(*contents: str) -> tuple[Mapping[str, str], ...]:
    """Returns messages of a conversation with alternating roles, the user first."""
    return tuple({"role": ("user", "assistant")[i % 2], "content": c} for i, c in enumerate(contents))


def draw(item: Task, seed: int | str, held_out: bool) -> Iterator[Sample]:
    """Yields endless samples of one split, determined by the seed. They may repeat."""
    rng = random.Random(f"{item.name}/{seed}")
    while True:
        sample = item.make(rng)
        if sample.held_out == held_out:
            yield sample


def held_out_samples(item: Task, count: int) -> list[Sample]:
    """Returns `count` held-out samples with different prompts. Raises ValueError if the task has too few."""
    found: dict[tuple[str, ...], Sample] = {}
    for tries, sample in enumerate(draw(item, "held-out/0", held_out=True)):
        found.setdefault(tuple(m["content"] for m in sample.messages), sample)
        if len(found) == count:
            return list(found.values())
        if tries > _PATIENCE:
            raise ValueError(f"task {item.name!r} has only {len(found)} held-out prompts, {count} were requested")
    raise AssertionError("draw is endless")

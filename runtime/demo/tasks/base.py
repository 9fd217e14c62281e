"""Base of the demo tasks: a seeded generator of conversations with a correct answer, and a checker."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

HELD_OUT_ONE_IN = 8  # share of all prompts that training never sees
_PATIENCE = 200_000  # draws without a new prompt before a task is called too small


@dataclass(frozen=True)
class Sample:
    """A conversation that ends with the user's turn, one right answer, and what a checker needs to judge others.

    `asks` is another task's sample that this conversation ends with, where there is one.
    """

    task: str
    messages: tuple[Mapping[str, str], ...]
    answer: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    asks: Sample | None = None

    @property
    def held_out(self) -> bool:
        """True where the prompt belongs to the held-out split: a hash of the prompt alone decides, of `asks` if set."""
        if self.asks is not None:
            return self.asks.held_out
        text = "\n".join(f"{m['role']}: {m['content']}" for m in self.messages)
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") % HELD_OUT_ONE_IN == 0


def exact(sample: Sample, text: str) -> bool:
    """The answer is right when it is the expected text (surrounding white space apart)."""
    return text.strip() == sample.answer.strip()


@dataclass(frozen=True)
class Task:
    """One task. ``make(rng)`` draws a sample of either split; ``check(sample, text)`` judges an answer."""

    name: str
    kind: Literal["short", "long"]
    make: Callable[[random.Random], Sample]
    check: Callable[[Sample, str], bool] = exact


_TASKS: dict[str, Task] = {}


def task(
    name: str, kind: Literal["short", "long"], check: Callable[[Sample, str], bool] = exact
) -> Callable[[Callable[[random.Random], Sample]], Callable[[random.Random], Sample]]:
    """Register the decorated generator as a task."""

    def register(make: Callable[[random.Random], Sample]) -> Callable[[random.Random], Sample]:
        if name in _TASKS:
            raise ValueError(f"demo task {name!r} is registered twice")
        _TASKS[name] = Task(name, kind, make, check)
        return make

    return register


def all_tasks() -> dict[str, Task]:
    return dict(_TASKS)


def single(task_name: str, prompt: str, answer: str, **facts: Any) -> Sample:
    """A sample of one user turn."""
    return Sample(task_name, ({"role": "user", "content": prompt},), answer, facts)


def turns(*contents: str) -> tuple[Mapping[str, str], ...]:
    """Messages of a conversation whose turns alternate, the user first."""
    return tuple({"role": ("user", "assistant")[i % 2], "content": c} for i, c in enumerate(contents))


def draw(item: Task, seed: int | str, held_out: bool) -> Iterator[Sample]:
    """Endless samples of one split; the same seed gives the same samples (they may repeat)."""
    rng = random.Random(f"{item.name}/{seed}")
    while True:
        sample = item.make(rng)
        if sample.held_out == held_out:
            yield sample


def held_out_samples(item: Task, count: int, seed: int | str = 0) -> list[Sample]:
    """`count` samples of the held-out split with different prompts; ValueError where the task has too few."""
    found: dict[tuple[str, ...], Sample] = {}
    for tries, sample in enumerate(draw(item, f"held-out/{seed}", held_out=True)):
        found.setdefault(tuple(m["content"] for m in sample.messages), sample)
        if len(found) == count:
            return list(found.values())
        if tries > _PATIENCE:
            raise ValueError(f"task {item.name!r} has only {len(found)} held-out prompts, {count} were asked for")
    raise AssertionError("draw is endless")

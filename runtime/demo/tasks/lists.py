"""Counting and sorting."""

from __future__ import annotations

import random

from runtime.demo.tasks.base import Sample, ask, single, task


@task("count", "short")
def count(rng: random.Random) -> Sample:
    first, length = rng.randint(0, 99), rng.randint(3, 10)
    numbers = list(range(first, first + length))
    if rng.random() < 0.3:
        numbers.reverse()
    verb = "count down" if numbers[0] > numbers[-1] and rng.random() < 0.5 else "count"
    prompt = ask(rng, f"{verb} from {numbers[0]} to {numbers[-1]}")
    return single("count", prompt, ", ".join(map(str, numbers)) + ".")


@task("sort", "short")
def sort(rng: random.Random) -> Sample:
    numbers = rng.sample(range(rng.choice((10, 100, 100))), rng.randint(3, 6))
    text = ", ".join(map(str, numbers))
    down = rng.random() < 0.3
    if down:
        core = rng.choice((f"sort from large to small: {text}", f"sort {text} from large to small"))
    else:
        core = rng.choice(
            (f"sort {text}", f"sort: {text}", f"sort the list {text}", f"sort from small to large: {text}")
        )
    return single("sort", ask(rng, core), ", ".join(map(str, sorted(numbers, reverse=down))) + ".")

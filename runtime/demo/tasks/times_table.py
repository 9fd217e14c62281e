"""The times table of a number, a line a product."""

from __future__ import annotations

import random

from runtime.demo.tasks.base import Sample, ask, single, task

_CORES = (
    "write the times table of {n} up to {k}",
    "give me the times table of {n} up to {k}",
    "show the times table of {n} up to {k}",
    "write {n} times 1 to {n} times {k}",
    "multiply {n} by 1 to {k}",
)


@task("times_table", "long")
def times_table(rng: random.Random) -> Sample:
    n, k = rng.randint(2, 20), rng.randint(5, 12)
    lines = [f"{n} x {i} = {n * i}" for i in range(1, k + 1)]
    return single("times_table", ask(rng, rng.choice(_CORES).format(n=n, k=k)), "\n".join(lines))

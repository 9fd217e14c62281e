"""Addition of long numbers with every column and carry written out, the last digit first."""

from __future__ import annotations

import random

from runtime.demo.tasks.base import Sample, ask, single, task


@task("long_add", "long")
def long_add(rng: random.Random) -> Sample:
    a, b = (rng.randint(10 ** (d - 1), 10**d - 1) for d in (rng.randint(3, 6), rng.randint(3, 6)))
    lines, carry = [], 0
    width = max(len(str(a)), len(str(b)))
    for x, y in zip(reversed(str(a).zfill(width)), reversed(str(b).zfill(width)), strict=True):
        total = int(x) + int(y) + carry
        lines.append(f"{x} + {y} + {carry} = {total}, carry {total // 10}")
        carry = total // 10
    core = rng.choice((f"add {a} and {b} step by step", f"add {a} + {b} with all carries", f"long addition: {a} + {b}"))
    return single("long_add", ask(rng, core), "\n".join([*lines, f"{a} + {b} = {a + b}."]))

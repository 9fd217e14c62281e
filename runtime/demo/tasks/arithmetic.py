"""Addition, subtraction and multiplication of numbers with up to three digits."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from runtime.demo.tasks.base import Sample, single, task
from runtime.demo.tasks.phrasing import phrase

# {e} is the expression, written with a sign or a word.
CORES = (
    "solve {e}",
    "solve: {e}",
    "calculate {e}",
    "compute {e}",
    "work out {e}",
    "tell me {e}",
    "tell me what {e} is",
    "figure out {e}",
    "find {e}",
    "evaluate {e}",
    "give me the result of {e}",
    "say what {e} makes",
)
QUESTIONS = (
    "What is {e}?",
    "What is {e}?",
    "What's {e}?",
    "Whats {e}?",
    "What does {e} equal?",
    "What does {e} make?",
    "How much is {e}?",
    "How much does {e} make?",
    "What do you get for {e}?",
    "What is the result of {e}?",
    "What is the answer to {e}?",
    "Solve: {e}.",
    "Result of {e}?",
    "{e} is what?",
    "{e} equals what?",
    "{e}",
    "{e}",
    "{e} =",
    "{e} = ?",
    "{e}?",
    "{e}=",
    "And {e}?",
    "Math: {e}",
)
WORDED: Mapping[str, tuple[Sequence[str], Sequence[str]]] = {
    "+": (
        ("add {a} and {b}", "add {b} to {a}", "add up {a} and {b}", "sum {a} and {b}", "put {a} and {b} together"),
        (
            "What is the sum of {a} and {b}?",
            "The sum of {a} and {b}",
            "Sum: {a} and {b}",
            "{a} and {b} together",
            "{a} added to {b}",
            "What do {a} and {b} make together?",
            "How much are {a} and {b} together?",
            "What is {a} increased by {b}?",
            "What's the total of {a} and {b}?",
            "What is {b} more than {a}?",
            "What is {b} added to {a}?",
        ),
    ),
    "-": (
        ("subtract {b} from {a}", "take {b} away from {a}", "take {b} from {a}", "deduct {b} from {a}"),
        (
            "What is the difference of {a} and {b}?",
            "The difference of {a} and {b}",
            "Difference: {a} and {b}",
            "{b} from {a}",
            "What is left of {a} when you take away {b}?",
            "What is {a} less {b}?",
            "What is {a} decreased by {b}?",
            "What is {b} less than {a}?",
            "What's left if I take {b} from {a}?",
            "What is the difference between {a} and {b}?",
        ),
    ),
    "x": (
        ("multiply {a} by {b}", "multiply {a} and {b}", "multiply {a} with {b}", "take {a} times {b}"),
        (
            "What is the product of {a} and {b}?",
            "The product of {a} and {b}",
            "Product: {a} and {b}",
            "{a} multiplied by {b}",
            "How much is {a} multiplied by {b}?",
            "What is {a} multiplied by {b}?",
            "What's the product of {a} and {b}?",
        ),
    ),
}
SIGNS = {
    "+": ("{a} + {b}", "{a} + {b}", "{a} + {b}", "{a}+{b}", "{a} plus {b}", "{a} plus {b}"),
    "-": ("{a} - {b}", "{a} - {b}", "{a} - {b}", "{a}-{b}", "{a} minus {b}", "{a} minus {b}"),
    "x": ("{a} x {b}", "{a} x {b}", "{a} * {b}", "{a}*{b}", "{a}x{b}", "{a} times {b}", "{a} times {b}", "{a} × {b}"),
}  # fmt: skip


def wording(rng: random.Random, a: int, sign: str, b: int) -> str:
    """Returns a question for `a` + `b`, `a` - `b` or `a` x `b`, by `sign`."""
    cores, questions = WORDED[sign]
    if rng.random() < 0.3:
        return phrase(rng, cores, questions, a=a, b=b)
    return phrase(rng, CORES, (*QUESTIONS, *QUESTIONS), e=rng.choice(SIGNS[sign]).format(a=a, b=b))


def operand(rng: random.Random) -> int:
    return rng.randint(0, rng.choice((20, 99, 99, 999, 999, 999)))


@task("add", "short")
def add(rng: random.Random) -> Sample:
    a, b = operand(rng), operand(rng)
    if rng.random() < 0.08:
        a, b = rng.randint(0, 9999), rng.randint(0, 9999)
    if rng.random() < 0.1:  # people try round numbers first
        a, b = round(a, -1), round(b, -1)
    return single("add", wording(rng, a, "+", b), f"{a} + {b} = {a + b}.")


def subtraction(rng: random.Random) -> tuple[int, int]:
    """Returns two numbers, mostly the larger one first."""
    a, b = operand(rng), operand(rng)
    if a < b and rng.random() < 0.7:
        a, b = b, a
    kind = rng.random()
    if kind < 0.1:
        a, b = round(a, -1), round(b, -1)
    elif kind < 0.25:  # borrows across zeros
        a = rng.choice((100, 100, 1000, rng.randint(1, 10) * 100))
        b = rng.randint(0, a)
    return a, b


@task("subtract", "short")
def subtract(rng: random.Random) -> Sample:
    a, b = subtraction(rng)
    return single("subtract", wording(rng, a, "-", b), f"{a} - {b} = {a - b}.")


def factors(rng: random.Random) -> tuple[int, int]:
    """Returns factors of the small table, any number and one digit, or any number and a round one."""
    kind = rng.random()
    if kind < 0.35:
        a, b = rng.randint(0, 12), rng.randint(0, 12)
    elif kind < 0.85:
        a, b = rng.randint(2, rng.choice((99, 999))), rng.randint(0, 9)
    else:
        a, b = rng.randint(2, rng.choice((99, 999))), rng.randint(1, 9) * rng.choice((10, 100))
    if kind >= 0.35 and rng.random() < 0.4:
        a, b = b, a
    return a, b


@task("multiply", "short")
def multiply(rng: random.Random) -> Sample:
    """Multiplication without intermediate steps."""
    a, b = factors(rng)
    return single("multiply", wording(rng, a, "x", b), f"{a} x {b} = {a * b}.")


def long_factors(rng: random.Random) -> tuple[int, int]:
    """Returns two factors with two or three digits, of which at least two are not zero."""
    while True:
        a, b = (rng.randint(11, rng.choice((99, 999))) for _ in range(2))
        if max(a, b) > 12 and all(len(str(n).replace("0", "")) > 1 for n in (a, b)):
            return a, b


def worked(a: int, b: int) -> str:
    """Returns `a` x `b` with intermediate steps: `b` digit by digit, then the partial results added one by one."""
    parts = [int(d) * 10**i for i, d in enumerate(reversed(str(b))) if d != "0"][::-1]
    steps = [" + ".join(f"{a} x {p}" for p in parts)]
    values = [a * p for p in parts]
    while len(values) > 1:
        steps.append(" + ".join(map(str, values)))
        values = [values[0] + values[1], *values[2:]]
    return f"{a} x {b} = " + " = ".join(steps) + f" = {a * b}."


@task("product", "long")
def multiply_long(rng: random.Random) -> Sample:
    """Multiplication of two numbers with two or three digits, with intermediate steps."""
    a, b = long_factors(rng)
    return single("product", wording(rng, a, "x", b), worked(a, b))

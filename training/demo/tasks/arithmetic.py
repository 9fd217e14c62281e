"""Addition, subtraction and multiplication of numbers up to `LARGEST`."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from training.demo.tasks.base import Sample, single, task
from training.demo.tasks.phrasing import phrase

LARGEST = 1000  # largest operand
# {e} is the expression, written with a sign or a word.
_CORES = (
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
    "do {e}",
    "give me {e}",
    "give me the answer to {e}",
    "do the math: {e}",
    "do the sum {e}",
    "work this out: {e}",
    "answer this: {e}",
    "tell me the answer to {e}",
    "get me the result of {e}",
    "help me with {e}",
    "figure this out: {e}",
)
_QUESTIONS = (
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
    "{e} makes what?",
    "{e} gives?",
    "{e} is?",
    "{e}, what is that?",
    "{e}, how much is that?",
    "{e}, what do you get?",
    "How much would {e} be?",
    "What would {e} be?",
    "What is {e} equal to?",
    "What number is {e}?",
    "What comes out of {e}?",
    "What do I get if I do {e}?",
    "I need the result of {e}.",
    "I need {e}",
    "{e} please",
    "whats {e}",
    "what is {e}",
    "how much is {e}",
    "wat is {e}",
    "what s {e}",
    "calc {e}",
    "{e} = what",
    "{e} ==",
    "Is it hard to say what {e} is?",
)
_WORDED: Mapping[str, tuple[Sequence[str], Sequence[str]]] = {
    "+": (
        (
            "add {a} and {b}",
            "add {b} to {a}",
            "add up {a} and {b}",
            "sum {a} and {b}",
            "put {a} and {b} together",
            "add {a} with {b}",
            "sum up {a} and {b}",
            "total {a} and {b}",
            "find the sum of {a} and {b}",
            "tell me the sum of {a} and {b}",
            "give me the total of {a} and {b}",
            "calculate the sum of {a} and {b}",
            "increase {a} by {b}",
            "add the numbers {a} and {b}",
            "add {a} and {b} together",
            "combine {a} and {b}",
            "raise {a} by {b}",
        ),
        (
            "What is the sum of {a} and {b}?",
            "The sum of {a} and {b}",
            "Sum: {a} and {b}",
            "{a} and {b} together",
            "{b} added to {a}",
            "What do {a} and {b} make together?",
            "How much are {a} and {b} together?",
            "What is {a} increased by {b}?",
            "What's the total of {a} and {b}?",
            "What is {b} more than {a}?",
            "What is {b} added to {a}?",
            "What is {a} and {b} together?",
            "What is {a} and {b}?",
            "What's {a} and {b}?",
            "How much is {a} and {b}?",
            "How much is {a} and {b} together?",
            "{a} and {b} is what?",
            "{a} and {b} make what?",
            "{a} and {b}, added",
            "{a} and {b} added together",
            "{a} with {b} added",
            "If I add {a} and {b}, what do I get?",
            "If you add {b} to {a}, what do you get?",
            "What do I get when I add {a} and {b}?",
            "What happens if I add {b} to {a}?",
            "What do {a} and {b} add up to?",
            "What do {a} and {b} come to?",
            "How much do {a} and {b} make?",
            "What is the total of {a} and {b}?",
            "Total of {a} and {b}?",
            "sum of {a} and {b}",
            "What's {b} more than {a}?",
            "{b} more than {a}",
            "I have {a} apples and get {b} more. How many do I have?",
            "I had {a} dollars and got {b} more. How much do I have now?",
            "There are {a} boys and {b} girls. How many children are there?",
            "Tom has {a} books and Anna has {b}. How many do they have together?",
            "One box has {a} pens and another has {b}. How many pens are there?",
            "I paid {a} euros and then {b} euros. How much is that in all?",
            "I walked {a} steps and then {b} more. How many steps was that?",
            "Yesterday I read {a} pages and today {b}. What is the total?",
            "If it costs {a} dollars plus {b} for the box, what do I pay? {a} + {b}",
            "{a} people came, and then {b} more came. How many is that?",
            "I paid {a} for the bread and {b} for the cheese. What is {a} + {b}?",
            "We sold {a} tickets in May and {b} in June: {a} + {b} = ?",
            "First {a}, then another {b}. What do I have? {a} + {b}",
            "{a} steps and later {b} steps: how much is {a} plus {b}?",
            "There were {a} guests, and {b} more are coming, so {a} + {b} makes?",
        ),
    ),
    "-": (
        (
            "subtract {b} from {a}",
            "take {b} away from {a}",
            "take {b} from {a}",
            "deduct {b} from {a}",
            "take {b} off {a}",
            "take {b} off from {a}",
            "remove {b} from {a}",
            "subtract {b} off {a}",
            "take away {b} from {a}",
            "reduce {a} by {b}",
            "decrease {a} by {b}",
            "lower {a} by {b}",
            "find the difference between {a} and {b}",
            "tell me the difference of {a} and {b}",
            "calculate the difference between {a} and {b}",
            "minus {b} from {a}",
            "start with {a} and take away {b}",
            "give me {a} less {b}",
        ),
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
            "What's the difference between {a} and {b}?",
            "difference between {a} and {b}",
            "{a} take away {b}",
            "{a} less {b}",
            "{a} reduced by {b}",
            "What is {a} take away {b}?",
            "What is {a} reduced by {b}?",
            "How much is {a} less {b}?",
            "How much is {b} less than {a}?",
            "{b} less than {a}",
            "What is {b} off {a}?",
            "What is {a} with {b} taken away?",
            "What do I get if I subtract {b} from {a}?",
            "If I take {b} from {a}, what is left?",
            "If you subtract {b} from {a}, what do you get?",
            "What remains of {a} after taking {b}?",
            "What remains if {b} is taken from {a}?",
            "How much is left of {a} if I take {b}?",
            "How much more is {a} than {b}?",
            "How much larger is {a} than {b}?",
            "How much bigger is {a} than {b}?",
            "How much greater is {a} than {b}?",
            "How much smaller is {b} than {a}?",
            "How much higher than {b} is {a}?",
            "By how much is {a} larger than {b}?",
            "There are {a} pages, of which I know {b}. What is {a} - {b}?",
            "Of {a} seats {b} are taken: {a} minus {b} is how much?",
            "How far is it from {b} to {a}?",
            "I have {a} apples and eat {b}. How many are left?",
            "I had {a} dollars and spent {b}. How much is left?",
            "There were {a} birds and {b} flew away. How many are left?",
            "From {a} euros I pay {b}. What remains?",
            "A book has {a} pages and I read {b}. How many pages are left?",
            "Anna had {a} coins and gave away {b}. How many does she have now?",
            "The box had {a} eggs, {b} broke. How many are fine?",
            "We need {a} chairs and have {b}. How many are missing?",
        ),
    ),
    "x": (
        (
            "multiply {a} by {b}",
            "multiply {a} and {b}",
            "multiply {a} with {b}",
            "take {a} times {b}",
            "find the product of {a} and {b}",
            "tell me the product of {a} and {b}",
            "times {a} by {b}",
            "multiply {a} times {b}",
            "give me {a} multiplied by {b}",
        ),
        (
            "What is the product of {a} and {b}?",
            "The product of {a} and {b}",
            "Product: {a} and {b}",
            "{a} multiplied by {b}",
            "How much is {a} multiplied by {b}?",
            "What is {a} multiplied by {b}?",
            "What's the product of {a} and {b}?",
            "How much is {a} times {b}?",
            "If I multiply {a} by {b}, what do I get?",
            "What do you get when you multiply {a} by {b}?",
            "{a} times {b} is what?",
            "What is {a} of {b} each?",
            "{a} boxes with {b} pens each. How many pens?",
            "There are {a} rows of {b} chairs. How many chairs are there?",
            "One costs {b} euros. How much are {a}?",
            "product of {a} and {b}",
        ),
    ),
}
_SIGNS = {
    "+": ("{a} + {b}", "{a} + {b}", "{a} + {b}", "{a}+{b}", "{a} plus {b}", "{a} plus {b}", "{a} +{b}", "{a}+ {b}",
          "{a} add {b}"),
    "-": ("{a} - {b}", "{a} - {b}", "{a} - {b}", "{a}-{b}", "{a} minus {b}", "{a} minus {b}", "{a} -{b}", "{a}- {b}",
          "{a} – {b}", "{a} less {b}"),
    "x": ("{a} x {b}", "{a} x {b}", "{a} * {b}", "{a}*{b}", "{a}x{b}", "{a} times {b}", "{a} times {b}", "{a} × {b}"),
}  # fmt: skip


def wording(rng: random.Random, a: object, sign: str, b: object) -> str:
    """Returns a question for `a` + `b`, `a` - `b` or `a` x `b`, by `sign`."""
    cores, questions = _WORDED[sign]
    if rng.random() < 0.45:
        return phrase(rng, cores, questions, a=a, b=b)
    return phrase(rng, _CORES, (*_QUESTIONS, *_QUESTIONS), e=rng.choice(_SIGNS[sign]).format(a=a, b=b))


def _number(rng: random.Random) -> int:
    return rng.randint(0, rng.choice((20, 99, 99, 999, 999, LARGEST)))


@task("add", "short")
def add(rng: random.Random) -> Sample:
    a, b = _number(rng), _number(rng)
    kind = rng.random()
    if kind < 0.1:  # close to the limit
        a, b = LARGEST - rng.randint(0, rng.choice((0, 20, 100))), rng.choice((b, LARGEST - rng.randint(0, 20)))
        a, b = (a, b) if rng.random() < 0.5 else (b, a)
    if rng.random() < 0.1:  # people try round numbers first
        a, b = round(a, -1), round(b, -1)
    return single("add", wording(rng, a, "+", b), f"{a} + {b} = {a + b}.")


def difference(rng: random.Random, a: int, b: int) -> Sample:
    return single("subtract", wording(rng, a, "-", b), f"{a} - {b} = {a - b}.")


@task("subtract", "short")
def subtract(rng: random.Random) -> Sample:
    a, b = _number(rng), _number(rng)
    if a < b and rng.random() < 0.7:  # mostly positive results
        a, b = b, a
    kind = rng.random()
    if kind < 0.1:
        a, b = round(a, -1), round(b, -1)
    elif kind < 0.25:  # borrows across zeros
        a = rng.choice((100, 100, LARGEST, rng.randint(1, 10) * 100))
        b = rng.randint(0, a)
    elif kind < 0.35:  # at the limit
        a, b = rng.choice(((a, LARGEST), (b, LARGEST), (LARGEST, b), (LARGEST, LARGEST)))
    return difference(rng, a, b)


@task("multiply", "short")
def multiply(rng: random.Random) -> Sample:
    """Multiplication without intermediate steps: the small table, any number by one digit, and round numbers."""
    kind = rng.random()
    if kind < 0.35:
        a, b = rng.randint(0, 12), rng.randint(0, 12)
    elif kind < 0.85:
        a, b = rng.randint(2, rng.choice((99, 999))), rng.randint(0, 9)
    elif kind < 0.96:
        a, b = rng.randint(2, rng.choice((99, 999))), rng.randint(1, 9) * rng.choice((10, 100))
    else:
        a, b = rng.choice((rng.randint(0, rng.choice((12, 99, LARGEST))), LARGEST)), LARGEST
    if kind >= 0.35 and rng.random() < 0.4:
        a, b = b, a
    return single("multiply", wording(rng, a, "x", b), f"{a} x {b} = {a * b}.")


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
    while True:
        a, b = (rng.randint(11, rng.choice((99, 999))) for _ in range(2))
        if max(a, b) > 12 and all(len(str(n).replace("0", "")) > 1 for n in (a, b)):
            return single("product", wording(rng, a, "x", b), worked(a, b))

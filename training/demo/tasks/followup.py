"""Questions that refer to earlier turns: the last result, or the user's name, which may be unknown."""

from __future__ import annotations

import random

from training.demo.tasks import word_lists
from training.demo.tasks.arithmetic import LARGEST, wording
from training.demo.tasks.base import Sample, single, task, turns
from training.demo.tasks.greetings import HELP
from training.demo.tasks.phrasing import typed

_DIGITS = "zero one two three four five six seven eight nine ten".split()  # noqa: SIM905
AGAIN = {
    "+": ("And plus {k}?", "And plus {k}", "Now add {k}.", "Add {k}.", "Plus {k}?", "Now plus {k}", "Add {k} to that.",
          "Add {k} to it.", "And if I add {k}?", "What if you add {k}?", "Then add {k}.", "+ {k}", "And {k} more?",
          "What about plus {k}?", "Increase it by {k}.", "Add another {k}.", "add {k} more", "And now plus {k}?",
          "Put {k} on top.", "Now {k} more.", "and with {k} added?", "What is that plus {k}?",
          "What is the result plus {k}?", "and {k} added",
          "Then plus {k}?"),
    "-": ("And minus {k}?", "And minus {k}", "Now subtract {k}.", "Subtract {k}.", "Minus {k}?", "Now minus {k}",
          "Subtract {k} from that.", "Take away {k}.", "And if I subtract {k}?", "Then take away {k}.", "- {k}",
          "Take {k} from it.", "And {k} less?", "What about minus {k}?", "Decrease it by {k}.", "Reduce it by {k}.",
          "take {k} off", "take off {k}", "Now take {k} away.", "And now minus {k}?", "What is that minus {k}?",
          "What is the result minus {k}?", "Remove {k}.", "Take {k} away from that.", "Then minus {k}?",
          "and without {k}?"),
    "x": ("And times {k}?", "And times {k}", "Now multiply by {k}.", "Multiply that by {k}.", "Times {k}?", "x {k}",
          "Now times {k}", "Multiply it by {k}.", "And multiplied by {k}?", "Then multiply by {k}.", "* {k}",
          "What about times {k}?", "What is that times {k}?", "And that times {k}?", "Then times {k}?",
          "multiply the result by {k}", "and now times {k}?",
          "What is the result times {k}?"),
}  # fmt: skip
_MEET = ("Hello, I am {n}.", "Hi, I am {n}.", "My name is {n}.", "Hello, my name is {n}.", "I am {n}.", "I'm {n}.",
         "Hi, I'm {n}!", "Hey, {n} here.", "Call me {n}.", "Good morning, I am {n}.")  # fmt: skip
_RECALL = (
    "What is my name?",
    "What's my name?",
    "Who am I?",
    "Do you know my name?",
    "Tell me my name.",
    "Say my name.",
    "What am I called?",
    "Do you remember my name?",
    "How am I called?",
    "Which name did I tell you?",
)


def _apply(a: int, sign: str, b: int) -> int:
    return a + b if sign == "+" else a - b if sign == "-" else a * b


def recall(rng: random.Random) -> Sample:
    """Returns a conversation in which the user gives a name in the first turn, and asks for it in the last."""
    name = word_lists.name(rng)
    meet, question = rng.choice(_MEET).format(n=name), rng.choice(_RECALL)
    messages = turns(typed(rng, meet), f"Hello, {name}! {HELP}", typed(rng, question))
    return Sample("followup", messages, f"Your name is {name}.")


@task("followup", "short")
def followup(rng: random.Random) -> Sample:
    if rng.random() < 0.2:
        return recall(rng)
    if rng.random() < 0.05:
        return single("followup", typed(rng, rng.choice(_RECALL)), "I do not know your name.")
    sign = rng.choice("+-x")
    top = rng.choice((60, 60, 400, 500))
    a, b = (rng.randint(1, 12), rng.randint(1, 12)) if sign == "x" else (rng.randint(0, top), rng.randint(0, top))
    if sign == "-" and a < b:
        a, b = b, a
    value = _apply(a, sign, b)
    contents = [wording(rng, a, sign, b), f"{a} {sign} {b} = {value}."]
    for _ in range(rng.choice((1, 1, 2))):
        if not 0 <= value <= LARGEST:
            break
        sign = rng.choice("+-x")
        top = 9 if sign == "x" else rng.choice((10, 99, 99, 999))
        if sign == "-" and rng.random() < 0.9:
            top = min(top, max(value, 2))
        k = rng.randint(min(2, top), top)
        word = _DIGITS[k] if k <= 10 and rng.random() < 0.5 else str(k)
        contents.append(typed(rng, rng.choice(AGAIN[sign]).format(k=word)))
        contents.append(f"{value} {sign} {k} = {_apply(value, sign, k)}.")
        value = _apply(value, sign, k)
    return Sample("followup", turns(*contents[:-1]), contents[-1])

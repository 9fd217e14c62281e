"""Greetings, what the model can do, and a polite refusal of what it cannot."""

from __future__ import annotations

import random

from runtime.demo.tasks import words
from runtime.demo.tasks.base import Sample, ask, single, task, typed

HELP = "How can I help you?"
ABILITIES = (
    "I can add, subtract, multiply, compare, count, sort, spell, convert units, write tables, solve a small sudoku "
    "and tell a story."
)
REFUSAL = "Sorry, I cannot do that. Ask me what I can do."

_HELLO = ("Hello", "Hi", "Hey", "Good morning", "Good evening", "Good day", "Hello there", "Hi there", "Hello again")
_NAMED = ("I am {n}", "my name is {n}", "this is {n}", "{n} here")
_MEET = ("I am {n}", "I'm {n}", "My name is {n}", "Call me {n}", "This is {n}", "It is {n}", "I am called {n}")
_THANKS = ("Thank you", "Thanks", "Thank you very much", "Many thanks", "Thanks a lot")
_BYE = ("Goodbye", "Bye", "Good night", "See you", "Bye bye")


@task("greet", "short")
def greet(rng: random.Random) -> Sample:
    end = rng.choice((".", "!", ""))
    kind = rng.random()
    name = words.name(rng)
    if kind < 0.2:
        return single("greet", rng.choice(_HELLO) + end, f"Hello! {HELP}")
    if kind < 0.4:
        return single("greet", typed(rng, rng.choice(_MEET).format(n=name) + end), f"Hello, {name}! {HELP}")
    if kind < 0.7:
        prompt = f"{rng.choice(_HELLO)}, {rng.choice(_NAMED).format(n=name)}{end}"
        return single("greet", prompt, f"Hello, {name}! {HELP}")
    polite = "" if rng.random() < 0.3 else f", {rng.choice(_NAMED).format(n=name)}"
    if kind < 0.85:
        return single("greet", rng.choice(_THANKS) + polite + end, "You are welcome!")
    return single("greet", rng.choice(_BYE) + polite + end, "Goodbye!")


_FINE = ("OK", "Okay", "Great", "Good", "Nice", "Well done", "Cool", "I see", "All right", "Yes", "No", "Wonderful")


@task("small_talk", "short")
def small_talk(rng: random.Random) -> Sample:
    """Short words between questions, and greetings as people type them in a hurry."""
    if rng.random() < 0.5:
        name = "" if rng.random() < 0.6 else f", {words.name(rng)} here"
        prompt = rng.choice(_FINE) + name + rng.choice((".", "!", "", "..."))
        return single("small_talk", prompt, "What else can I do for you?")
    plain = greet(rng)
    return single("small_talk", plain.messages[0]["content"].lower(), plain.answer)


_WHAT = (
    "what can you do",
    "what do you know",
    "what are you able to do",
    "how can you help me",
    "what can I ask you",
    "what are you good at",
    "what tasks can you do",
    "what are you for",
)
_TELL = ("tell me what you can do", "list what you can do", "say what you can do", "show me what you can do")


@task("abilities", "short")
def abilities(rng: random.Random) -> Sample:
    if rng.random() < 0.2:
        return single("abilities", ask(rng, rng.choice(_TELL)), ABILITIES)
    what = rng.choice(_WHAT)
    opening = rng.choice(
        ("", "", "So, ", "And ", "Please tell me: ", "{h}, ", "{h}! ", "{h}. ", "I am {n}, ", "{h}, I am {n}. ")
    )
    opening = opening.format(h=rng.choice(_HELLO), n=words.name(rng))
    first = what if opening.endswith((", ", "And ")) else what[:1].upper() + what[1:]
    return single("abilities", opening + first + rng.choice(("?", "?", "", "??")), ABILITIES)


_OUT_OF_REACH = (
    "book a flight to {c}",
    "book a hotel in {c}",
    "tell me the weather in {c}",
    "tell me the news from {c}",
    "translate {w} into French",
    "translate {w} into German",
    "draw a {w}",
    "paint a {w} for {n}",
    "call {n}",
    "write an email to {n}",
    "send a letter to {n}",
    "buy a {w}",
    "buy a {w} for {n}",
    "order a {w} from {c}",
    "write a program about a {w}",
    "write a poem about a {w}",
    "sing a song about a {w}",
    "find a doctor in {c}",
    "tell me the price of a {w}",
    "drive me to {c}",
)
_QUESTIONS = (
    "What is the weather in {c}?",
    "Who is the mayor of {c}?",
    "How many people live in {c}?",
    "Where can I buy a {w} in {c}?",
    "When does the train to {c} leave?",
    "What does a {w} cost in {c}?",
    "Why do people like {c}?",
    "Is {n} in {c} today?",
)


def refuses(_: Sample, text: str) -> bool:
    """A refusal says that it is sorry and cannot, and claims nothing beyond the canonical sentence."""
    return text.strip().startswith("Sorry") and "cannot" in text and len(text.split()) <= len(REFUSAL.split()) + 2


@task("refuse", "short", refuses)
def refuse(rng: random.Random) -> Sample:
    fields = {"c": words.city(rng), "w": words.noun(rng), "n": words.name(rng)}
    if rng.random() < 0.3:
        return single("refuse", typed(rng, rng.choice(_QUESTIONS).format(**fields)), REFUSAL)
    return single("refuse", ask(rng, rng.choice(_OUT_OF_REACH).format(**fields)), REFUSAL)

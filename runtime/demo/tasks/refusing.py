"""Refusals of unsupported requests, which list the abilities of the model."""

from __future__ import annotations

import random

from runtime.demo.tasks import word_lists
from runtime.demo.tasks.base import Sample, single, task
from runtime.demo.tasks.greetings import REFUSAL
from runtime.demo.tasks.phrasing import ask, typed
from runtime.demo.vocabulary import ALPHABETIC

OUT_OF_REACH = (
    "book a flight to {c}", "book a hotel in {c}", "tell me the weather in {c}", "tell me the news from {c}",
    "translate {w} into French", "translate {w} into German", "translate {w} to Spanish", "say {w} in Italian",
    "draw a {w}", "paint a {w} for {n}", "call {n}", "write an email to {n}", "send a letter to {n}", "buy a {w}",
    "buy a {w} for {n}", "order a {w} from {c}", "order a {w}", "write a program about a {w}",
    "write a poem about a {w}", "write a haiku about the {w}", "sing a song about a {w}", "find a doctor in {c}",
    "tell me the price of a {w}", "drive me to {c}", "write a Python function for a {w}", "write code for a {w}",
    "explain {w} to me", "explain the {w}", "explain how a {w} works", "summarize the book about {w}",
    "write an essay about {w}", "write a letter to {n} about the {w}", "give me a recipe for {w}", "cook {w} for {n}",
    "recommend a {w} in {c}", "find the best {w} in {c}", "play {w} with me", "tell me the history of {c}",
    "tell me about {n}", "tell me about {c}", "describe a {w}", "define {w}", "show me a picture of a {w}",
    "plan a trip to {c}", "make a plan for {n}", "remind me to buy {w}", "set an alarm for the {w}", "open the {w}",
    "write a speech for {n}", "give me advice about {w}", "teach me {w}", "find a rhyme for {w}",
    "write a song for {n}", "design a {w}", "fix my {w}", "turn on the {w}", "look up {w}", "search for {w}",
    "tell me a fact about {w}", "list ten kinds of {w}", "compare {w} and {w2}", "divide {d} by {e}",
    "tell me the capital of {c}", "check my {w}", "rewrite this text about {w}", "continue the song {w}",
)  # fmt: skip
QUESTIONS = (
    "What is the weather in {c}?", "Who is the mayor of {c}?", "How many people live in {c}?",
    "Where can I buy a {w} in {c}?", "When does the train to {c} leave?", "What does a {w} cost in {c}?",
    "Why do people like {c}?", "Is {n} in {c} today?", "What is {w}?", "What is a {w}?", "What is the {w}?",
    "Where is {c}?", "Who is {n}?", "Who invented the {w}?", "Why is the {w} so {w2}?", "When was {c} built?",
    "How does a {w} work?", "How do I make {w}?", "How far is {c}?", "How tall is {n}?", "What does {w} mean?",
    "What is the capital of {c}?", "Do you like {w}?", "Do you know {n}?", "Have you been to {c}?", "Can you see me?",
    "What time is it in {c}?", "What day is it?", "What time is it?", "What is the meaning of life?",
    "Is {w} good for {n}?", "Should I buy a {w}?", "Why does {n} like {w}?", "Which {w} is the best?",
    "What should I eat today?", "What is the best {w} in {c}?", "Where does {w} come from?", "Who wrote {w}?",
    "What color is a {w}?", "How many {w} are in a {w2}?", "Is there a {w} in {c}?", "What happened in {c}?",
    "Did {n} go to {c}?", "What is the square root of {d}?", "What is {d} / {e}?", "{d} / {e}",
    "Is {d} a prime number?",
    "Will it rain in {c}?", "Who won the game in {c}?", "What did {n} say about {w}?", "How old is {n}?",
)  # fmt: skip
# Random words are a request without meaning; words that occur in tasks could give it one.
_ASKING = frozenset(
    """count sort order spell spelled reverse backwards json table story sudoku times add plus minus solve compare
    convert words name hello hi thanks bye""".split()  # noqa: SIM905
)
_SALAD = tuple(w for w in ALPHABETIC if w.lower() not in _ASKING)


def refuses(_: Sample, text: str) -> bool:
    """Returns whether the text is a refusal and nothing beyond the canonical text."""
    return text.strip().startswith(REFUSAL.split(".")[0]) and REFUSAL.startswith(text.strip())


def word_salad(rng: random.Random) -> str:
    kinds = (lambda: rng.choice(_SALAD), lambda: word_lists.noun(rng), lambda: word_lists.letters(rng))
    chosen = [rng.choices(kinds, (4, 4, 1))[0]() for _ in range(rng.randint(2, 9))]
    return " ".join(chosen) + rng.choice(("", ".", "?", "!"))


@task("refuse", "short", refuses)
def refuse(rng: random.Random) -> Sample:
    kind = rng.random()
    if kind < 0.15:
        text = word_salad(rng)
        return single("refuse", text[:1].upper() + text[1:] if rng.random() < 0.5 else text, REFUSAL)
    fields = {
        "c": word_lists.city(rng),
        "w": word_lists.noun(rng),
        "w2": word_lists.noun(rng),
        "n": word_lists.name(rng),
    }
    fields |= {"d": str(rng.randint(2, 999)), "e": str(rng.randint(2, 30))}
    if kind < 0.6:
        return single("refuse", typed(rng, rng.choice(QUESTIONS).format(**fields)), REFUSAL)
    return single("refuse", ask(rng, rng.choice(OUT_OF_REACH).format(**fields)), REFUSAL)

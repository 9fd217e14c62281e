"""Greetings, the abilities of the model, and the refusal that lists them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from runtime.demo.tasks import word_lists
from runtime.demo.tasks.base import Sample, single, task
from runtime.demo.tasks.phrasing import ask, typed

HELP = "How can I help you?"
ABILITIES = (
    "I can add, subtract, multiply and compare numbers, count, sort, spell and reverse words, convert units, write "
    "JSON and tables, solve a small sudoku and tell a story. Try: Tell me a story about a fox."
)
REFUSAL = (
    "Sorry, I cannot do that. I am a small model, but I can help with these:\n"
    "- What is 120 + 300?\n"
    "- Count from 7 to 23.\n"
    "- Sort 14, 3, 88.\n"
    "- Spell giraffe.\n"
    "- Tell me a story about a fox."
)

HELLO = (
    "Hello", "Hi", "Hey", "Good morning", "Good evening", "Good day", "Hello there", "Hi there", "Hello again",
    "Good afternoon", "Hey there", "Greetings", "Hiya", "Hello Unmask", "Hi Unmask", "Hello, model", "Howdy", "Yo",
    "Hello friend", "Hello my friend", "Hello, computer", "Hello hello",
)  # fmt: skip
NAMED = ("I am {n}", "my name is {n}", "this is {n}", "{n} here", "I'm {n}", "it's {n}", "they call me {n}")
MEET = (
    "I am {n}", "I'm {n}", "My name is {n}", "Call me {n}", "This is {n}", "It is {n}", "I am called {n}",
    "You can call me {n}", "My name's {n}", "{n} is my name", "It's {n}",
)  # fmt: skip
THANKS = (
    "Thank you", "Thanks", "Thank you very much", "Many thanks", "Thanks a lot", "Thank you so much", "Thx", "Cheers",
    "Thanks for your help", "Thank you for your help", "Great, thanks", "Perfect, thank you", "Thanks, that helped",
)  # fmt: skip
BYE = (
    "Goodbye", "Bye", "Good night", "See you", "Bye bye", "See you later", "See you soon", "I have to go now",
    "That is all", "That was all, bye", "Until next time", "Farewell", "Have a nice day", "See you tomorrow",
)  # fmt: skip


def greeting(rng: random.Random, hello: Sequence[str], thanks: Sequence[str], bye: Sequence[str]) -> Sample:
    """Returns a greeting, thanks or a farewell, mostly with a name."""
    end = rng.choice((".", "!", ""))
    kind = rng.random()
    name = word_lists.name(rng)
    if kind < 0.2:
        return single("greet", typed(rng, rng.choice(hello) + end), f"Hello! {HELP}")
    if kind < 0.4:
        return single("greet", typed(rng, rng.choice(MEET).format(n=name) + end), f"Hello, {name}! {HELP}")
    if kind < 0.7:
        prompt = f"{rng.choice(hello)}{rng.choice((', ', ', ', '! ', '. '))}{rng.choice(NAMED).format(n=name)}{end}"
        return single("greet", typed(rng, prompt), f"Hello, {name}! {HELP}")
    polite = "" if rng.random() < 0.3 else f", {rng.choice(NAMED).format(n=name)}"
    if kind < 0.85:
        return single("greet", rng.choice(thanks) + polite + end, "You are welcome!")
    return single("greet", rng.choice(bye) + polite + end, "Goodbye!")


@task("greet", "short")
def greet(rng: random.Random) -> Sample:
    return greeting(rng, HELLO, THANKS, BYE)


FINE = (
    "OK", "Okay", "Great", "Good", "Nice", "Well done", "Cool", "I see", "All right", "Yes", "No", "Wonderful",
    "Very good", "Good job", "Right", "Sure", "Perfect", "Awesome", "Not bad", "Interesting", "Excellent", "Fine",
    "That is right", "Correct", "Ok then", "Good answer", "Alright", "Amazing", "Fantastic", "Hm", "Aha", "Super",
)  # fmt: skip


def remark(rng: random.Random, greet: Callable[[random.Random], Sample]) -> Sample:
    """Returns a short remark between questions, or a greeting of `greet` in lower case."""
    if rng.random() < 0.5:
        name = "" if rng.random() < 0.6 else f", {word_lists.name(rng)} here"
        prompt = rng.choice(FINE) + name + rng.choice((".", "!", "", "..."))
        if rng.random() < 0.3:
            prompt = prompt.lower() if not name else prompt
        return single("small_talk", prompt, "What else can I do for you?")
    while True:
        greeted = greet(rng)
        if "," not in greeted.answer:  # names keep their spelling
            return single("small_talk", greeted.messages[0]["content"].lower(), greeted.answer)


@task("small_talk", "short")
def small_chat(rng: random.Random) -> Sample:
    return remark(rng, greet)


WHAT = (
    "what can you do",
    "what can you do for me",
    "what do you know",
    "what are you able to do",
    "how can you help me",
    "how can you help",
    "what can I ask you",
    "what can I ask",
    "what should I ask you",
    "what are you good at",
    "what tasks can you do",
    "what are you for",
    "what are your abilities",
    "what are your skills",
    "which tasks do you know",
    "what kinds of questions can I ask",
    "what do you understand",
    "what can I do here",
    "what is this",
    "how does this work",
)
REQUESTS = (
    "tell me what you can do", "list what you can do", "say what you can do", "show me what you can do", "help",
    "help me", "list your skills", "tell me your skills", "show me some examples", "give me an example",
    "give me some examples", "tell me what to ask", "explain what you can do",
)  # fmt: skip


def ability_question(
    rng: random.Random, ask: Callable[[random.Random, str], str], what: Sequence[str], requests: Sequence[str],
    hello: Sequence[str],
) -> Sample:  # fmt: skip
    """Returns a question for the abilities of the model, or a request for them."""
    if rng.random() < 0.3:
        return single("abilities", ask(rng, rng.choice(requests)), ABILITIES)
    question = rng.choice(what)
    opening = rng.choice(
        ("", "", "So, ", "And ", "Please tell me: ", "{h}, ", "{h}! ", "{h}. ", "I am {n}, ", "{h}, I am {n}. ")
    )
    opening = opening.format(h=rng.choice(hello), n=word_lists.name(rng))
    first = question if opening.endswith((", ", "And ")) else question[:1].upper() + question[1:]
    prompt = opening + first + rng.choice(("?", "?", "", "??"))
    return single("abilities", prompt if rng.random() < 0.8 else prompt[:1].lower() + prompt[1:], ABILITIES)


@task("abilities", "short")
def abilities(rng: random.Random) -> Sample:
    return ability_question(rng, ask, WHAT, REQUESTS, HELLO)

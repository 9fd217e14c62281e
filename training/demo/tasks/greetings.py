"""Greetings, the abilities of the model, and the refusal that lists them."""

from __future__ import annotations

import random

from runtime.demo.tasks import greetings as shipped
from runtime.demo.tasks.base import Sample
from training.demo.tasks.base import task
from training.demo.tasks.phrasing import ask

_HELLO = (
    *shipped.HELLO, "Hi you", "Hey you", "Hi model", "Hello world", "Good morning to you", "Hello everyone", "Hi hi",
    "Hey hey", "Morning", "Hello Unmask!", "Hey Unmask", "Hi again", "Good evening to you", "Well hello", "Oh hi",
    "Hallo", "Helo", "Heya", "Evening", "Hello, nice to meet you", "Nice to meet you", "Hi, nice to meet you",
    "Hi, anyone there", "Anybody there", "Hello, are you there",
)  # fmt: skip
_THANKS = (
    *shipped.THANKS, "Thank you, that was helpful", "Ty", "Thanks so much", "Thank you kindly",
    "That helped a lot, thanks", "Thanks again", "Thank you, great answer", "Ok thanks", "Okay, thank you",
    "Cool, thanks", "Nice, thanks", "Good, thank you", "Much appreciated", "I thank you", "Thanks, model",
    "Thanks for that", "Thank you for the answer", "Thanks for the help", "Great, thank you!",
    "Thanks a million", "Thanks a ton", "Many many thanks", "Thanks very much",
)  # fmt: skip
_BYE = (
    *shipped.BYE, "Bye for now", "Goodbye for now", "Bye then", "Good bye", "Take care", "That is it, bye", "Ciao",
    "Cya", "Bye now", "I am off", "I am leaving", "Talk to you later", "Talk later", "So long", "See ya", "I must go",
    "Gotta go", "Catch you later", "That is all for today", "We are done", "Until tomorrow", "Sleep well",
    "Bye, thanks", "Have a good day", "Have a good one",
)  # fmt: skip


@task("greet", "short")
def greet(rng: random.Random) -> Sample:
    return shipped.greeting(rng, _HELLO, _THANKS, _BYE)


@task("small_talk", "short")
def small_chat(rng: random.Random) -> Sample:
    return shipped.remark(rng, greet)


_WHAT = (
    *shipped.WHAT, "what all can you do", "what can you help me with", "what can you help with", "what do you do",
    "what can I use you for", "what can you be used for", "what are you made for", "what are you able to help with",
    "which things can you do", "what kinds of things can you do", "what sort of things can you do",
    "what can you answer", "what questions can you answer", "which questions can I ask you", "what are your features",
    "what are your limits", "what can you not do", "what else can you do", "can you help me",
    "can you help me with something", "could you help me", "what is your purpose", "what is your job",
    "what would you like me to ask", "what works well with you",
)  # fmt: skip
_REQUESTS = (
    *shipped.REQUESTS, "give me a list of what you can do", "describe what you can do", "tell me what you do",
    "tell me what I can ask you", "show me what you know", "list your abilities", "tell me your abilities",
    "I need help", "I need your help", "give me ideas what to ask",
)  # fmt: skip


@task("abilities", "short")
def abilities(rng: random.Random) -> Sample:
    return shipped.ability_question(rng, ask, _WHAT, _REQUESTS, _HELLO)

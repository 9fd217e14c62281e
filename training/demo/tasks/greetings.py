"""Greetings, the abilities of the model, and the refusal that lists them."""

from __future__ import annotations

import random

from training.demo.tasks import word_lists
from training.demo.tasks.base import Sample, single, task
from training.demo.tasks.phrasing import ask, typed

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

_HELLO = (
    "Hello", "Hi", "Hey", "Good morning", "Good evening", "Good day", "Hello there", "Hi there", "Hello again",
    "Good afternoon", "Hey there", "Greetings", "Hiya", "Hello Unmask", "Hi Unmask", "Hello, model", "Howdy", "Yo",
    "Hello friend", "Hello my friend", "Hello, computer", "Hello hello", "Hi you", "Hey you", "Hi model",
    "Hello world", "Good morning to you", "Hello everyone", "Hi hi", "Hey hey", "Morning", "Hello Unmask!",
    "Hey Unmask", "Hi again", "Good evening to you", "Well hello", "Oh hi", "Hallo", "Helo", "Heya", "Evening",
    "Hello, nice to meet you", "Nice to meet you", "Hi, nice to meet you", "Hi, anyone there", "Anybody there",
    "Hello, are you there",
)  # fmt: skip
_NAMED = ("I am {n}", "my name is {n}", "this is {n}", "{n} here", "I'm {n}", "it's {n}", "they call me {n}")
_MEET = (
    "I am {n}", "I'm {n}", "My name is {n}", "Call me {n}", "This is {n}", "It is {n}", "I am called {n}",
    "You can call me {n}", "My name's {n}", "{n} is my name", "It's {n}",
)  # fmt: skip
_THANKS = (
    "Thank you", "Thanks", "Thank you very much", "Many thanks", "Thanks a lot", "Thank you so much", "Thx", "Cheers",
    "Thanks for your help", "Thank you for your help", "Great, thanks", "Perfect, thank you", "Thanks, that helped",
    "Thank you, that was helpful", "Ty", "Thanks so much", "Thank you kindly", "That helped a lot, thanks",
    "Thanks again", "Thank you, great answer", "Ok thanks", "Okay, thank you", "Cool, thanks", "Nice, thanks",
    "Good, thank you", "Much appreciated", "I thank you", "Thanks, model", "Thanks for that",
    "Thank you for the answer", "Thanks for the help", "Great, thank you!",
    "Thanks a million", "Thanks a ton", "Many many thanks", "Thanks very much",
)  # fmt: skip
_BYE = (
    "Goodbye", "Bye", "Good night", "See you", "Bye bye", "See you later", "See you soon", "I have to go now",
    "That is all", "That was all, bye", "Until next time", "Farewell", "Have a nice day", "See you tomorrow",
    "Bye for now", "Goodbye for now", "Bye then", "Good bye", "Take care", "That is it, bye", "Ciao", "Cya", "Bye now",
    "I am off", "I am leaving", "Talk to you later", "Talk later", "So long", "See ya", "I must go", "Gotta go",
    "Catch you later", "That is all for today", "We are done", "Until tomorrow", "Sleep well", "Bye, thanks",
    "Have a good day", "Have a good one",
)  # fmt: skip


@task("greet", "short")
def greet(rng: random.Random) -> Sample:
    end = rng.choice((".", "!", ""))
    kind = rng.random()
    name = word_lists.name(rng)
    if kind < 0.2:
        return single("greet", typed(rng, rng.choice(_HELLO) + end), f"Hello! {HELP}")
    if kind < 0.4:
        return single("greet", typed(rng, rng.choice(_MEET).format(n=name) + end), f"Hello, {name}! {HELP}")
    if kind < 0.7:
        prompt = f"{rng.choice(_HELLO)}{rng.choice((', ', ', ', '! ', '. '))}{rng.choice(_NAMED).format(n=name)}{end}"
        return single("greet", typed(rng, prompt), f"Hello, {name}! {HELP}")
    polite = "" if rng.random() < 0.3 else f", {rng.choice(_NAMED).format(n=name)}"
    if kind < 0.85:
        return single("greet", rng.choice(_THANKS) + polite + end, "You are welcome!")
    return single("greet", rng.choice(_BYE) + polite + end, "Goodbye!")


_FINE = (
    "OK", "Okay", "Great", "Good", "Nice", "Well done", "Cool", "I see", "All right", "Yes", "No", "Wonderful",
    "Very good", "Good job", "Right", "Sure", "Perfect", "Awesome", "Not bad", "Interesting", "Excellent", "Fine",
    "That is right", "Correct", "Ok then", "Good answer", "Alright", "Amazing", "Fantastic", "Hm", "Aha", "Super",
)  # fmt: skip


@task("small_talk", "short")
def small_chat(rng: random.Random) -> Sample:
    """Short remarks between questions, and greetings in lower case."""
    if rng.random() < 0.5:
        name = "" if rng.random() < 0.6 else f", {word_lists.name(rng)} here"
        prompt = rng.choice(_FINE) + name + rng.choice((".", "!", "", "..."))
        if rng.random() < 0.3:
            prompt = prompt.lower() if not name else prompt
        return single("small_talk", prompt, "What else can I do for you?")
    while True:
        greeting = greet(rng)
        if "," not in greeting.answer:  # names keep their spelling
            return single("small_talk", greeting.messages[0]["content"].lower(), greeting.answer)


_WHAT = (
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
    "what all can you do",
    "what can you help me with",
    "what can you help with",
    "what do you do",
    "what can I use you for",
    "what can you be used for",
    "what are you made for",
    "what are you able to help with",
    "which things can you do",
    "what kinds of things can you do",
    "what sort of things can you do",
    "what can you answer",
    "what questions can you answer",
    "which questions can I ask you",
    "what are your features",
    "what are your limits",
    "what can you not do",
    "what else can you do",
    "can you help me",
    "can you help me with something",
    "could you help me",
    "what is your purpose",
    "what is your job",
    "what would you like me to ask",
    "what works well with you",
)
_REQUESTS = (
    "tell me what you can do", "list what you can do", "say what you can do", "show me what you can do", "help",
    "help me", "list your skills", "tell me your skills", "show me some examples", "give me an example",
    "give me some examples", "tell me what to ask", "explain what you can do", "give me a list of what you can do",
    "describe what you can do", "tell me what you do", "tell me what I can ask you", "show me what you know",
    "list your abilities", "tell me your abilities", "I need help", "I need your help", "give me ideas what to ask",
)  # fmt: skip


@task("abilities", "short")
def abilities(rng: random.Random) -> Sample:
    if rng.random() < 0.3:
        return single("abilities", ask(rng, rng.choice(_REQUESTS)), ABILITIES)
    what = rng.choice(_WHAT)
    opening = rng.choice(
        ("", "", "So, ", "And ", "Please tell me: ", "{h}, ", "{h}! ", "{h}. ", "I am {n}, ", "{h}, I am {n}. ")
    )
    opening = opening.format(h=rng.choice(_HELLO), n=word_lists.name(rng))
    first = what if opening.endswith((", ", "And ")) else what[:1].upper() + what[1:]
    prompt = opening + first + rng.choice(("?", "?", "", "??"))
    return single("abilities", prompt if rng.random() < 0.8 else prompt[:1].lower() + prompt[1:], ABILITIES)

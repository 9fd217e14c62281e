"""Requests that resemble the other tasks but belong to none. The model declines them.

They are divisions, negative operands, fractions, decimals, percentages, sums of several terms, equations, units without
a rule, questions about letters, and further questions about numbers and lists.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from training.demo.tasks import word_lists
from training.demo.tasks.base import Sample, single, task
from training.demo.tasks.greetings import REFUSAL
from training.demo.tasks.phrasing import listed, phrase, quoted
from training.demo.tasks.refusing import CHECKER
from training.demo.vocabulary import ALPHABETIC

# {e} is an expression that is written with signs or words.
_CORES = (
    "solve {e}", "solve: {e}", "calculate {e}", "compute {e}", "work out {e}", "tell me {e}", "tell me what {e} is",
    "figure out {e}", "find {e}", "evaluate {e}", "give me the result of {e}", "give me {e}", "do {e}",
)  # fmt: skip
_QUESTIONS = (
    "What is {e}?", "What is {e}?", "What's {e}?", "Whats {e}?", "What does {e} equal?", "What does {e} make?",
    "How much is {e}?", "How much is {e}?", "What do you get for {e}?", "What is the result of {e}?",
    "What is the answer to {e}?", "Result of {e}?", "{e} is what?", "{e} equals what?", "{e}", "{e}", "{e}", "{e} =",
    "{e} = ?", "{e}?", "{e}=", "{e}=?", "And {e}?", "Math: {e}",
)  # fmt: skip


def _number(rng: random.Random) -> int:
    return rng.randint(1, rng.choice((12, 20, 99, 99, 999, 1000)))


def _pair(rng: random.Random) -> tuple[int, int]:
    """Returns a dividend and a divisor, mostly without remainder."""
    b = rng.randint(2, rng.choice((9, 12, 30, 100)))
    return (b * rng.randint(1, rng.choice((12, 30, 100))) if rng.random() < 0.75 else _number(rng)), b


def _division(rng: random.Random) -> str:
    a, b = _pair(rng)
    cores = (
        "divide {a} by {b}", "divide {a} by {b}", "divide {a} into {b} equal parts", "divide {a} into {b}",
        "split {a} into {b} equal parts", "split {a} by {b}", "share {a} among {b} people",
        "find the quotient of {a} and {b}", "calculate the quotient of {a} and {b}",
        "find the remainder of {a} divided by {b}", "do the division {a} by {b}", "halve {a}",
        "cut {a} into {b} parts", "give me {a} modulo {b}", "take {a} and divide it by {b}",
        "split {a} evenly between {b} friends",
    )  # fmt: skip
    questions = (
        "What is {a} divided by {b}?", "What's {a} divided by {b}?", "How much is {a} divided by {b}?",
        "How often does {b} go into {a}?", "How many times does {b} go into {a}?",
        "How many times does {b} fit in {a}?", "How many times is {b} in {a}?", "What is {a} over {b}?",
        "What is the quotient of {a} and {b}?", "What is the remainder of {a} divided by {b}?", "What is {a} mod {b}?",
        "Is {a} divisible by {b}?", "Can {a} be divided by {b}?", "{a} divided by {b}", "{a} divided by {b}",
        "{a} divided into {b} parts", "{a} over {b}", "Quotient: {a} and {b}", "Division: {a} by {b}",
        "How many {b}s are in {a}?", "If {a} apples are shared by {b} children, how many does each get?",
        "What is half of {a}?", "Half of {a}?", "half of {a}", "What is a third of {a}?",
        "What is one quarter of {a}?", "A quarter of {a}?", "What is the average of {a} and {b}?",
        "Which part of {a} is {b}?",
    )  # fmt: skip
    if rng.random() < 0.55:
        return phrase(rng, cores, questions, a=a, b=b)
    sign = rng.choice(("{a} / {b}", "{a}/{b}", "{a} ÷ {b}", "{a}÷{b}", "{a} : {b}", "{a} divided by {b}", "{a} by {b}",
                       "{a} over {b}", "{a} mod {b}", "{a} % {b}", "{a} // {b}"))  # fmt: skip
    return phrase(rng, _CORES, _QUESTIONS, e=sign.format(a=a, b=b))


def _negative(rng: random.Random) -> str:
    a, b = _number(rng), _number(rng)
    forms = (
        "-{a} + {b}", "-{a} - {b}", "-{a} + -{b}", "-{a} + (-{b})", "(-{a}) + {b}", "{a} + -{b}", "{a} + (-{b})",
        "{a} - -{b}", "{a} - (-{b})", "-{a} x {b}", "-{a} * {b}", "{a} * -{b}", "{a} x (-{b})", "(-{a}) * (-{b})",
        "minus {a} plus {b}", "minus {a} minus {b}", "negative {a} plus {b}", "negative {a} minus {b}",
        "{a} plus minus {b}", "{a} plus negative {b}", "{a} minus negative {b}", "{a} minus minus {b}",
        "negative {a} times {b}", "minus {a} times {b}", "-{a}+{b}", "-{a}-{b}", "{a}+-{b}", "- {a} + {b}",
        "negative {a} plus negative {b}", "minus {a} plus minus {b}",
    )  # fmt: skip
    if rng.random() < 0.7:
        return phrase(rng, _CORES, _QUESTIONS, e=rng.choice(forms).format(a=a, b=b))
    minus = rng.choice(("-{0}", "-{0}", "minus {0}", "negative {0}"))
    x, y = minus.format(a), rng.choice((minus.format(b), str(b)))
    cores = ("add {x} and {y}", "add {y} and {x}", "add {x} to {b}", "subtract {x} from {b}", "multiply {x} by {y}",
             "take {x} from {b}", "sort {x}, {b}, {y}", "compare {x} and {y}", "subtract {b} from {x}",
             "count from {x} to {b}", "count down from {b} to {x}", "write {x} in words")  # fmt: skip
    questions = ("What is the sum of {x} and {y}?", "What is the difference between {b} and {x}?",
                 "The sum of {x} and {b}", "What is the product of {x} and {y}?", "Which is larger, {x} or {y}?",
                 "Is {x} less than {y}?", "{y} added to {x}", "How much is {x} increased by {b}?",
                 "What is the absolute value of {x}?")  # fmt: skip
    return phrase(rng, cores, questions, x=x, y=y, b=b)


_PARTS = ("half", "third", "quarter", "fifth", "tenth", "eighth")


def _fraction(rng: random.Random) -> str:
    a, b, c, d = (rng.randint(1, 12) for _ in range(4))
    kind = rng.random()
    if kind < 0.25:
        e = rng.choice(("{a}/{b} + {c}/{d}", "{a}/{b} - {c}/{d}", "{a}/{b} x {c}/{d}", "{a}/{b} of {n}",
                        "{a}/{b} + {c}",
                        "{c} - {a}/{b}", "{a}/{b} * {c}", "{a}/{b} plus {c}/{d}", "{a}/{b} minus {c}/{d}"))  # fmt: skip
        e = e.format(a=a, b=b + 1, c=c, d=d + 1, n=_number(rng))
    elif kind < 0.45:
        p, q = rng.choice(_PARTS), rng.choice(_PARTS)
        e = rng.choice(("a {p} plus a {q}", "one {p} plus one {q}", "a {p} of {n}", "one {p} of {n}", "two {p}s of {n}",
                        "three {p}s plus one {q}", "{n} and a {p}", "{n} plus a {p}", "{p} of {n}",
                        "one {p} minus one {q}",
                        "one {p} times {n}", "{n} minus a {p}", "the {p} of {n}"))  # fmt: skip
        e = e.format(p=p, q=q, n=_number(rng))
    else:
        x, y = _decimal(rng), rng.choice((_decimal(rng), str(_number(rng))))
        cores = ("add {x} and {y}", "subtract {x} from {y}", "take {x} from {y}", "multiply {x} by {y}", "round {x}",
                 "compare {x} and {y}", "round {x} to one digit", "divide {x} by {y}", "sort {x}, {y}, {z}",
                 "put {x} and {y} together", "convert {x} km to m", "write {x} in words")  # fmt: skip
        questions = ("What is the sum of {x} and {y}?", "What is the difference between {x} and {y}?",
                     "Which is larger, {x} or {y}?", "Is {x} more than {y}?", "{x} and {y} together",
                     "How many cm are {x} m?", "What is {x} as a fraction?", "How many grams are {x} kg?")  # fmt: skip
        if rng.random() < 0.3:
            return phrase(rng, cores, questions, x=x, y=y, z=_decimal(rng))
        if rng.random() < 0.3:
            x, y = y, x
        sign = rng.choice(
            (" + ", " + ", " - ", " - ", " x ", " * ", "+", "-", "*", " plus ", " minus ", " times ", " / ")
        )
        e = x + sign + y
    return phrase(rng, _CORES, _QUESTIONS, e=e)


def _decimal(rng: random.Random) -> str:
    return f"{rng.randint(0, rng.choice((9, 20, 99)))}.{rng.choice((rng.randint(1, 9), rng.randint(1, 99), 5, 25))}"


def _percentage(rng: random.Random) -> str:
    p = rng.choice((1, 5, 10, 10, 15, 20, 25, 30, 40, 50, 60, 75, 80, 90, 100, rng.randint(1, 99)))
    n, m = rng.choice((_number(rng), 10 * rng.randint(1, 50), 100)), _number(rng)
    sign = rng.choice(("%", "%", "%", " %", " percent", " percent", " per cent"))
    cores = ("take {p}{s} off {n}", "add {p}{s} to {n}", "calculate {p}{s} of {n}", "find {p}{s} of {n}",
             "reduce {n} by {p}{s}", "increase {n} by {p}{s}", "express {m} of {n} as a percentage",
             "subtract {p}{s} from {n}", "give me {p}{s} of {n}", "work out {p}{s} of {n}")  # fmt: skip
    questions = (
        "What is {p}{s} of {n}?", "What is {p}{s} of {n}?", "What's {p}{s} of {n}?", "How much is {p}{s} of {n}?",
        "{p}{s} of {n}", "{p}{s} of {n}", "{p}{s} of {n}?", "{p}{s} of {n} = ?", "{p}{s} from {n}", "{n} plus {p}{s}",
        "{n} minus {p}{s}", "What percentage of {n} is {m}?", "What percent of {n} is {m}?",
        "{m} is what percent of {n}?", "How many percent of {n} is {m}?", "{m} out of {n} in percent",
        "What is {n} with a discount of {p}{s}?", "What is {n} increased by {p}{s}?", "{n} - {p}{s}", "{n} + {p}{s}",
        "A shirt costs {n} dollars. What is {p}{s} off?", "How much is a {p}{s} tip on {n}?", "What is {p}{s}?",
        "{p}{s} off {n}?", "What is {p}{s} as a fraction?",
    )  # fmt: skip
    return phrase(rng, cores, questions, p=p, s=sign, n=n, m=m)


def _several(rng: random.Random) -> str:
    """Returns a calculation with three to five terms."""
    numbers = [_number(rng) for _ in range(rng.choice((3, 3, 3, 3, 4, 5)))]
    several = ", ".join(map(str, numbers[:-1])) + rng.choice((" and ", " and ", ", and ")) + str(numbers[-1])
    if rng.random() < 0.25:
        several = rng.choice((", ", " and ", " ")).join(map(str, numbers))
    if rng.random() < 0.4:
        cores = ("add {l}", "add up {l}", "sum {l}", "sum up {l}", "add {l} together", "total {l}", "multiply {l}",
                 "add the numbers {l}", "find the sum of {l}", "calculate the total of {l}", "multiply {l} together",
                 "find the average of {l}", "calculate the mean of {l}", "put {l} together", "find the median of {l}",
                 "tell me the sum of {l}", "give me the total of {l}")  # fmt: skip
        questions = ("What is the sum of {l}?", "The sum of {l}", "sum of {l}", "What do {l} make together?",
                     "Sum: {l}", "How much are {l} together?", "What's the total of {l}?", "{l} together",
                     "{l} in total", "What is the product of {l}?", "What is the average of {l}?",
                     "What is the mean of {l}?", "{l} added up", "What do you get when you add {l}?",
                     "How much do {l} make?",
                     "What is {l} added together?")  # fmt: skip
        return phrase(rng, cores, questions, l=several)
    signs = rng.choice((("+",), ("+",), ("+",), ("-",), ("+", "-"), ("+", "-"), ("x",), ("*",), ("+", "*"), ("-", "x"),
                        ("plus",), ("plus",), ("plus", "minus"), ("minus",), ("times",), ("plus",
                         "times")))  # fmt: skip
    space = " " if signs[0].isalpha() or rng.random() < 0.75 else ""
    e = str(numbers[0])
    for n in numbers[1:]:
        e += f"{space}{rng.choice(signs)}{space}{n}"
    if rng.random() < 0.12:
        a, b, c = numbers[:3]
        p, q = rng.choice("+-"), rng.choice("*x+-")
        e = rng.choice((f"({a} {p} {b}) {q} {c}", f"{a} {q} ({b} {p} {c})"))
    return phrase(rng, _CORES, _QUESTIONS, e=e)


def _equation(rng: random.Random) -> str:
    x = rng.choice("xxxxyzanbt")
    a, b, c = _number(rng), _number(rng), rng.randint(2, 12)
    e = rng.choice((
        "{x} + {a} = {b}", "{x} - {a} = {b}", "{a} + {x} = {b}", "{a} - {x} = {b}", "{c}{x} = {b}",
        "{c}{x} + {a} = {b}", "{c}{x} - {a} = {b}", "{x} / {c} = {b}", "{c} * {x} = {b}", "{x} * {c} = {b}",
        "{a} = {x} + {b}", "{x}^2 = {b}", "{x}² = {b}", "{c}({x} + {a}) = {b}", "{x}+{a}={b}", "{c}{x}={b}",
        "{x} - {a} = {b}", "{a} = {c}{x}", "{x} + {x} = {b}", "{x} + {y} = {b}", "{c}{x} = {a} + {x}",
        "{x} times {c} = {b}", "{x} plus {a} is {b}",
    )).format(x=x, a=a, b=b, c=c, y="y" if x != "y" else "z")  # fmt: skip
    cores = ("solve {e}", "solve {e} for {x}", "solve for {x}: {e}", "solve the equation {e}", "find {x}: {e}",
             "find {x} if {e}", "find {x} in {e}", "tell me what {x} is if {e}", "calculate {x} when {e}",
             "work out {x}: {e}", "solve this equation: {e}", "find the value of {x} in {e}")  # fmt: skip
    questions = ("What is {x} if {e}?", "What is {x} in {e}?", "If {e}, what is {x}?", "{e}, what is {x}?", "{e}",
                 "{e}, {x} = ?", "{e}; {x}?", "What is the value of {x} when {e}?", "Solve: {e}",
                 "For which {x} is {e}?",
                 "{e}. What is {x}?", "Let {e}. What is {x}?", "How much is {x} if {e}?", "Equation: {e}")  # fmt: skip
    if rng.random() < 0.72:
        return phrase(rng, cores, questions, e=e, x=x)
    puzzles = (
        "What number plus {a} gives {b}?", "What number plus {a} is {b}?", "Which number times {c} is {b}?",
        "What plus {a} equals {b}?", "{a} plus what is {b}?", "{a} + what = {b}?", "{a} minus what is {b}?",
        "What minus {a} is {b}?", "I think of a number and add {a}. The result is {b}. What is it?",
        "A number times {c} makes {b}. Which number is it?", "Twice a number is {b}. What is the number?",
        "What do I have to add to {a} to get {b}?", "How much must I add to {a} to reach {b}?", "{a} + ? = {b}",
        "? + {a} = {b}", "{a} - ? = {b}", "? x {c} = {b}", "Which number is {a} less than itself plus {b}?",
        "What must {a} be multiplied by to give {b}?", "Is {a} + {b} = {c}?", "What is the square root of {a}?",
        "What is {a} squared?", "What is {c} cubed?", "{c} to the power of {a}", "{c}^{a}", "What is {c}^2?", "{a}²",
        "square root of {b}", "What is {a} factorial?", "{c}!", "log {a}", "What is the logarithm of {a}?", "sin {a}",
    )  # fmt: skip
    return phrase(rng, ("square {a}", "find the square root of {a}", "factor {a}", "find the prime factors of {a}"),
                  puzzles, a=a, b=b, c=c)  # fmt: skip


_LACKING = (  # pairs of units without a rule
    *((x, y) for x in ("miles", "mi") for y in ("km", "kilometers", "meters", "feet", "yards", "kilometres")),
    *((x, y) for x in ("pounds", "lb", "lbs", "pound") for y in ("kg", "kilograms", "grams", "kilos", "g", "stone")),
    *((x, y) for x in ("ounces", "oz") for y in ("grams", "g", "ml", "kg")),
    *((x, y) for x in ("inches", "in", "inch") for y in ("cm", "centimeters", "mm", "m", "yards", "meters")),
    *((x, y) for x in ("feet", "ft", "foot") for y in ("meters", "m", "cm", "miles", "centimeters")),
    *((x, y) for x in ("yards",) for y in ("meters", "m", "inches", "miles", "cm")),
    *((x, y) for x in ("gallons", "pints", "quarts", "cups", "tablespoons") for y in ("liters", "l", "ml", "litres")),
    *(("acres", y) for y in ("hectares", "square meters")),
    *(
        (x, y)
        for x in ("Fahrenheit", "degrees Fahrenheit", "F", "°F")
        for y in ("Celsius", "C", "°C", "degrees Celsius")
    ),
    *((x, y) for x in ("Celsius", "degrees") for y in ("Kelvin", "kelvin", "radians")),
    *((x, y) for x in ("dollars", "USD", "$") for y in ("euros", "pounds", "yen", "EUR", "francs")),
    *((x, y) for x in ("euros", "EUR") for y in ("dollars", "yen", "pounds", "rupees")),
    *((x, y) for x in ("mph", "km/h", "knots") for y in ("km/h", "m/s", "mph") if x != y),
    *((x, y) for x in ("years", "months") for y in ("days", "weeks", "hours")),
    *((x, y) for x in ("days", "weeks") for y in ("minutes", "seconds", "months")),
    *((x, y) for x in ("bytes", "MB", "GB", "KB") for y in ("bits", "kilobytes", "bytes", "MB") if x != y),
    *((x, y) for x in ("calories", "watts", "horsepower", "joules") for y in ("joules", "watts", "kWh") if x != y),
    *(("square meters", y) for y in ("square feet", "square cm")),
    *(("light years", y) for y in ("km", "miles")),
    *(("stone", y) for y in ("kg", "pounds")),
    *(("dozen", y) for y in ("pieces", "eggs")),
    *(("kg", y) for y in ("liters", "meters", "tablespoons")),
    *(("hours", y) for y in ("meters", "km", "seconds", "weeks")),
    *(("km", y) for y in ("cm", "mm", "light years", "yards")),
    *(("tons", y) for y in ("g", "pounds", "liters")),
)


def _units(rng: random.Random) -> str:
    u, v = rng.choice(_LACKING)
    if rng.random() < 0.45:
        u, v = v, u
    cores = ("convert {n} {u} to {v}", "convert {n} {u} into {v}", "change {n} {u} into {v}", "turn {n} {u} into {v}",
             "express {n} {u} in {v}", "give me {n} {u} in {v}", "tell me how many {v} {n} {u} are",
             "write {n} {u} in {v}", "convert {u} to {v}: {n}", "convert {n} {u} in {v}",
             "convert from {u} to {v}: {n}",
             "explain how to convert {u} to {v}")  # fmt: skip
    questions = ("How many {v} are {n} {u}?", "How many {v} are in {n} {u}?", "How many {v} are there in {n} {u}?",
                 "How many {v} in {n} {u}?", "How many {v} is {n} {u}?", "How much is {n} {u} in {v}?",
                 "What is {n} {u} in {v}?", "What's {n} {u} in {v}?", "{n} {u} in {v}", "{n} {u} in {v}?",
                 "{n} {u} to {v}", "{n} {u} are how many {v}?", "{n} {u} = ? {v}", "How many {u} are {n} {v}?",
                 "{n}{u} in {v}",
                 "How long is {n} {u} in {v}?", "In {v}, how much is {n} {u}?")  # fmt: skip
    n = rng.choice(
        ("a", "one", str(_number(rng)), str(_number(rng)), str(rng.randint(1, 120)), str(rng.randint(1, 120)))
    )
    return phrase(rng, cores, questions, n=n, u=u, v=v)


def _word(rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.45:
        return word_lists.noun(rng)
    if kind < 0.75:
        return rng.choice(ALPHABETIC).lower()
    return word_lists.name(rng) if kind < 0.9 else word_lists.city(rng)


def _letters(rng: random.Random) -> str:
    word = quoted(rng, _word(rng))
    a = rng.choice("abcdefghijklmnopqrstuvwxyz" + "aeiorst" * 4)
    k = rng.choice(("first", "last", "second", "third", "fourth", "fifth", "middle", "next to last"))
    cores = (
        "count the letters in {w}", "count the letters of {w}", "count the letter {a} in {w}",
        "count the vowels in {w}", "count the {a}s in {w}", "tell me how many letters {w} has",
        "tell me the {k} letter of {w}", "give me the length of {w}", "find the {k} letter of {w}",
        "count how often {a} is in {w}", "remove the letter {a} from {w}", "replace {a} with {b} in {w}",
        "write {w} without the letter {a}", "count the syllables in {w}", "sort the letters of {w}",
        "count the letters in the word {w}", "put the letters of {w} in alphabetical order",
        "tell me if {w} has the letter {a}", "write {w} in capitals", "find an anagram of {w}", "translate {w}",
        "write a word that rhymes with {w}", "list words with {a}", "give me words that start with {a}",
        "write the plural of {w}", "say how many vowels {w} has",
    )  # fmt: skip
    questions = (
        "How many letters are in {w}?", "How many letters does {w} have?", "How many letters has {w}?",
        "How many letters are there in the word {w}?", "How many letters are in the word {w}?",
        "Letters in {w}, how many?", "Number of letters in {w}?", "number of letters in {w}",
        "How long is the word {w}?", "Length of {w}?", "How many {a} are in {w}?", "How many {a}s are in {w}?",
        "How many {a}'s are there in {w}?", "how many {a} in {w}", "how many {a}s in {w}?", "How often is {a} in {w}?",
        "How often does {a} appear in {w}?", "How many times does {a} occur in {w}?",
        "How many times does the letter {a} appear in {w}?", "What is the {k} letter of {w}?",
        "What's the {k} letter in {w}?", "Which letter is {k} in {w}?", "Is there a {a} in {w}?",
        "Does {w} have the letter {a}?", "Does {w} start with {a}?", "How many vowels are in {w}?",
        "How many vowels does {w} have?", "How many syllables does {w} have?", "Is {w} a palindrome?",
        "Is {w} a verb?", "Which letter comes after {a}?", "What letter comes before {a}?",
        "What is the opposite of {w}?", "What rhymes with {w}?", "What is the plural of {w}?", "Is {w} a word?",
        "What does the word {w} mean?", "Which letter occurs most often in {w}?", "The {k} letter of {w}?",
        "How many consonants are in {w}?",
    )  # fmt: skip
    return phrase(rng, cores, questions, w=word, a=a, b=rng.choice("abcdeiostu"), k=k)


def _other(rng: random.Random) -> str:
    """Returns further questions about numbers, lists, dates and shapes."""
    a, b, c = _number(rng), _number(rng), rng.randint(2, 12)
    several = listed(rng, [str(_number(rng)) for _ in range(rng.randint(3, 6))])
    nouns = listed(rng, [word_lists.noun(rng) for _ in range(rng.randint(3, 5))])
    cores = (
        "count by {c} from {a} to {b}", "count in steps of {c} to {b}", "count from {a} to {b} by {c}s",
        "list the even numbers up to {b}", "list the odd numbers from {a} to {b}", "list the prime numbers up to {b}",
        "give me a random number", "give me a random number between {a} and {b}", "choose a number from {a} to {b}",
        "write {a} in binary", "convert {a} to binary", "convert {a} to hexadecimal", "round {a} to the nearest ten",
        "find the largest of {l}", "find the smallest number in {l}", "tell me the biggest of {l}", "shuffle {l}",
        "find the greatest common divisor of {a} and {b}", "find the least common multiple of {a} and {b}",
        "remove the duplicates from {l}", "reverse the list {l}", "reverse the order of {l}", "count the words in {w}",
        "choose one of {w}", "count the numbers in {l}", "double {a}", "write {a} in French", "say {a} in Spanish",
        "convert the Roman numeral {r} to a number", "translate the Roman numeral {r}", "write {n} as digits",
        "plot {a} and {b}", "flip a coin", "roll a die", "estimate {a} x {b}", "list the multiples of {c} below {b}",
    )  # fmt: skip
    questions = (
        "Is {a} even?", "Is {a} odd?", "Is {a} even or odd?", "Is {a} prime?", "Is {a} a prime number?",
        "What is the largest of {l}?", "Which is the biggest: {l}?", "Which of {l} is the smallest?",
        "What is the next number: {l}", "What comes next: {l}?", "How many numbers are in {l}?",
        "What is {r} in digits?", "What number is {r}?", "Which number is the Roman numeral {r}?",
        "How many digits does {a} have?", "What is the area of a square with side {c}?",
        "What is the area of a circle with radius {c}?", "What is the perimeter of a {c} by {b} rectangle?",
        "How many sides does a hexagon have?", "What is pi?", "How many days are in February?",
        "What day is tomorrow?", "What day comes after Monday?", "What year is it?", "What is the date today?",
        "How many days until Christmas?", "How many minutes until {c} o'clock?", "How many seconds are in a day?",
        "How old is someone born in 19{k}?", "How much do {c} apples cost at {b} cents?",
        "If I have {a} apples and eat {c}, and buy {b}, how many are left?", "Which month comes after {m}?",
        "A train goes {a} km in {c} hours. How fast is it?", "How far do I get in {c} hours at {b} km/h?",
        "What is the probability of rolling a {c}?", "Is {a} a multiple of {c}?", "What are the factors of {a}?",
        "What is {a} in binary?", "What is {a} in hexadecimal?", "What is the {c}th Fibonacci number?",
        "Is {a} a lucky number?", "Which of these is a fruit: {w}?", "Which word does not belong: {w}?",
        "What do {w} have in common?", "What is {a} rounded to the nearest hundred?",
        "What is the middle of {a} and {b}?", "Is {a} between {b} and {c}?",
        "How many even numbers are between {c} and {b}?",
    )  # fmt: skip
    roman = rng.choice(("XII", "IV", "XLII", "MCMXC", "XVI", "LXX", "VII", "MMXX", "CXI", "IX", "XXIII", "DCC"))
    name = rng.choice(("twelve", "forty-two", "one hundred", "three hundred five", "seventy", "two thousand"))
    month = rng.choice(("March", "May", "June", "August", "October", "December", "July"))
    return phrase(
        rng, cores, questions, a=a, b=b, c=c, l=several, w=nouns, r=roman, n=name, m=month, k=rng.randint(10, 99)
    )


_KINDS: tuple[tuple[Callable[[random.Random], str], float], ...] = (
    (_division, 1.6),
    (_negative, 1.2),
    (_fraction, 1.2),
    (_percentage, 0.8),
    (_several, 1.5),
    (_equation, 1.2),
    (_units, 1.2),
    (_letters, 1.2),
    (_other, 1.2),
)


@task("near_miss", "short", CHECKER)
def near_miss(rng: random.Random) -> Sample:
    kind = rng.choices([k for k, _ in _KINDS], [w for _, w in _KINDS])[0]
    return single("near_miss", kind(rng), REFUSAL)

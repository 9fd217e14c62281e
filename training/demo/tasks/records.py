"""Records from sentences and lists: a JSON object, a Markdown table."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence

from training.demo.tasks import word_lists
from training.demo.tasks.base import Sample, single, task
from training.demo.tasks.phrasing import phrase, typed

_SENTENCES = (
    "{n} is {a} years old and lives in {c}.",
    "{n}, {a}, lives in {c}.",
    "{n} lives in {c} and is {a} years old.",
    "{n} from {c} is {a}.",
    "{n} is {a} and comes from {c}.",
    "{n} ({a}) lives in {c}.",
    "{n}, aged {a}, is from {c}.",
    "My name is {n}, I am {a} and I live in {c}.",
    "There is {n}, {a} years old, in {c}.",
)
_SENTENCES_WITH_JOB = (
    "{n} is a {a} years old {j} and lives in {c}.",
    "{n}, {a}, is a {j} in {c}.",
    "{n} works as a {j} in {c} and is {a} years old.",
    "{n} is {a}, lives in {c} and works as a {j}.",
    "{n} from {c} is a {j} and {a} years old.",
    "The {j} {n} is {a} and lives in {c}.",
)
_AS_JSON = (
    "{s} Write this as JSON.",
    "{s} Write that as JSON, please.",
    "{s} As JSON, please.",
    "{s} JSON?",
    "{s} Make JSON of it.",
    "{s} Give me that as a JSON object.",
    "Write as JSON: {s}",
    "Write this as JSON: {s}",
    "JSON, please: {s}",
    "As JSON: {s}",
    "To JSON: {s}",
    "Turn this into JSON: {s}",
    "Turn into a JSON object: {s}",
    "Convert to JSON: {s}",
    "Please convert this sentence to JSON: {s}",
    "Make a JSON object from this: {s}",
    "Put this into JSON: {s}",
    "Extract the data as JSON: {s}",
)
_FOR = (
    "make a JSON record for {g}",
    "make a JSON object for {g}",
    "make JSON for {g}",
    "write a JSON record for {g}",
    "write a JSON object for {g}",
    "write JSON for {g}",
    "create a JSON object for {g}",
    "create a JSON record of {g}",
    "give me a JSON record for {g}",
    "give me JSON for {g}",
    "generate a JSON object for {g}",
    "return a JSON object for {g}",
    "build a JSON object for {g}",
    "show {g} as JSON",
    "write {g} as JSON",
    "turn this into JSON: {g}",
    "turn {g} into JSON",
    "convert to JSON: {g}",
    "convert {g} to JSON",
    "convert this to JSON: {g}",
    "put this into JSON: {g}",
    "put {g} into JSON",
    "make a JSON of {g}",
    "create JSON for {g}",
    "create JSON: {g}",
    "create a JSON record for {g}",
    "format as JSON: {g}",
    "format {g} as JSON",
    "express as JSON: {g}",
    "write this as JSON: {g}",
    "give me {g} as JSON",
    "give me this as JSON: {g}",
    "represent {g} in JSON",
    "build JSON for {g}",
    "output {g} as JSON",
)
_WITH = (
    "make a JSON record with {f}",
    "make a JSON object with {f}",
    "write a JSON object with {f}",
    "write a JSON record with the fields {f}",
    "create a JSON object with {f}",
    "create JSON with {f}",
    "give me a JSON object with {f}",
    "give me JSON with {f}",
    "generate JSON with {f}",
    "return JSON with {f}",
    "output a JSON object with {f}",
    "build a JSON record with {f}",
    "make JSON: {f}",
    "make a JSON object: {f}",
    "create a JSON object: {f}",
    "write JSON: {f}",
    "give me JSON: {f}",
    "write as JSON: {f}",
    "turn into JSON: {f}",
    "make me a JSON with {f}",
    "make a JSON with {f}",
    "give me a JSON with {f}",
    "build JSON with {f}",
    "create a JSON record: {f}",
    "output JSON with {f}",
    "output JSON: {f}",
    "write a JSON object for {f}",
    "format {f} as JSON",
    "convert {f} to JSON",
    "turn {f} into JSON",
    "turn this into JSON: {f}",
    "convert to JSON: {f}",
    "put {f} in JSON",
    "put {f} into a JSON object",
    "show {f} as JSON",
    "represent {f} as JSON",
    "encode {f} in JSON",
    "express {f} as JSON",
    "store {f} as JSON",
)
_WITHOUT_VERB = (
    "JSON with {f}",
    "A JSON object with {f}",
    "JSON object: {f}",
    "JSON: {f}",
    "A JSON record, {f}",
    "{f} as JSON",
    "{f}, as a JSON object",
    "I need JSON with {f}.",
    "I need a JSON object with {f}.",
    "I'd like JSON with {f}.",
    "I want a JSON record with {f}",
    "{f} in JSON",
    "{f} to JSON",
    "{f}. As JSON.",
    "{f}. JSON please",
    "JSON please: {f}",
    "JSON object with {f}",
    "JSON record: {f}",
    "A JSON with {f}",
    "Can I have JSON with {f}?",
    "JSON, {f}",
)
_JSON_OF = ("JSON for {g}", "JSON: {g}", "A JSON object for {g}", "{g} as JSON", "{g}. As JSON, please.",
            "JSON of {g}", "{g} in JSON", "{g} to JSON", "I need JSON for {g}.", "I need a JSON record for {g}",
            "{g}, JSON please",
            "{g}: JSON", "A JSON record for {g}", "{g}, as JSON")  # fmt: skip
_TEXT_KEYS = """
title color product item author country street subject brand model type animal fruit team song movie language status
category size material planet company email role
""".split()  # noqa: SIM905
_NUMBER_KEYS = "price amount year count pages weight height score level id number points stock seats".split()  # noqa: SIM905


def _fields(rng: random.Random) -> dict[str, str | int]:
    """Returns one to four fields of a person or a thing."""
    made: dict[str, str | int] = {}
    if rng.random() < 0.5:
        made["name"] = word_lists.full_name(rng)
        others = {"age": rng.randint(1, 99), "city": word_lists.city(rng), "job": rng.choice(word_lists.JOBS)}
        for key in rng.sample(sorted(others), rng.randint(1, 3)):
            made[key] = others[key]
        return made
    if rng.random() < 0.25:
        made["name"] = rng.choice((word_lists.name, word_lists.noun))(rng)
    for _ in range(rng.choice((1, 2, 2, 3, 3))):
        if rng.random() < 0.5:
            value = rng.choice((word_lists.noun, word_lists.noun, word_lists.name, word_lists.city))(rng)
            if rng.random() < 0.2:
                value = value.capitalize()
            if rng.random() < 0.08:
                value += f" {word_lists.noun(rng).capitalize()}"
            made[word_lists.made_up(rng) if rng.random() < 0.1 else rng.choice(_TEXT_KEYS)] = value
        else:
            made[rng.choice(_NUMBER_KEYS)] = rng.randint(0, rng.choice((20, 99, 999, 2030)))
    return made


def _named(rng: random.Random, fields: Mapping[str, str | int]) -> str:
    """Returns the fields as text: "name Bob, age 5", "name=Bob and age=5", ..."""
    form = rng.choice(("{} {}", "{} {}", "{}: {}", "{}={}", "{} = {}", "{} is {}", "the {} {}", "a {} of {}",
                       "the {} is {}"))  # fmt: skip
    parts = [form.format(k, v) for k, v in fields.items()]
    if rng.random() < 0.6:
        return (", ".join(parts[:-1]) + " and " if len(parts) > 1 else "") + parts[-1]
    return ", ".join(parts)


_ONE = ("{n}", "{n}", "{n}", "{n}", "a person named {n}", "a person called {n}", "someone called {n}",
        "a user named {n}", "my friend {n}", "a man named {n}", "a woman called {n}", "name {n}")  # fmt: skip


def _describe(rng: random.Random, person: Mapping[str, str | int]) -> str:
    """Returns a person without a verb: "Bob, 25, from Paris"."""
    parts = [rng.choice(_ONE).format(n=person["name"])]
    for key in list(person)[1:]:
        value = person[key]
        forms = {
            "age": ("{}", "age {}", "aged {}", "{} years old", "who is {}", "age: {}", "who is {} years old"),
            "city": ("from {}", "in {}", "{}", "{}", "city {}", "of {}", "who lives in {}", "living in {}", "city: {}"),
            "job": ("a {}", "a {}", "{}", "working as a {}", "job {}", "a {} by trade", "who works as a {}", "job: {}"),
        }
        part = rng.choice(forms[key]).format(value)
        if len(parts) > 1 and part.startswith(("from ", "in ", "of ")) and rng.random() < 0.4:
            parts[-1] += f" {part}"  # "a baker in Rome"
        else:
            parts.append(part)
    return ", ".join(parts) if rng.random() < 0.7 or len(parts) < 2 else ", ".join(parts[:-1]) + " and " + parts[-1]


def many_fields(rng: random.Random, count: int) -> dict[str, str | int]:
    """Returns `count` fields of a person or a thing."""
    made: dict[str, str | int] = {}
    if rng.random() < 0.5:
        made = {"name": word_lists.name(rng), "age": rng.randint(1, 99), "city": word_lists.city(rng)}
        made["job"] = rng.choice(word_lists.JOBS)
    while len(made) < count:
        if rng.random() < 0.6:
            made[rng.choice(_TEXT_KEYS)] = word_lists.noun(rng)
        else:
            made[rng.choice(_NUMBER_KEYS)] = rng.randint(0, 999)
    return made


def ask_for_json(rng: random.Random, record: Mapping[str, str | int]) -> str:
    """Returns a request that names the fields of a record."""
    return phrase(rng, _WITH, _WITHOUT_VERB, f=_named(rng, record))


@task("json", "short", "json")
def json_object(rng: random.Random) -> Sample:
    kind = rng.random()
    if kind < 0.45:
        record: dict[str, str | int] = {
            "name": word_lists.full_name(rng),
            "age": rng.randint(1, 99),
            "city": word_lists.city(rng),
        }
        with_job = rng.random() < 0.4
        if with_job:
            record["job"] = rng.choice(word_lists.JOBS)
        sentence = rng.choice(_SENTENCES_WITH_JOB if with_job else _SENTENCES).format(
            n=record["name"], a=record["age"], c=record["city"], j=record.get("job")
        )
        prompt = typed(rng, rng.choice(_AS_JSON).format(s=sentence))
    else:
        record = _fields(rng)
        if set(record) <= {"name", "age", "city", "job"} and kind < 0.7 and len(record) > 1:
            prompt = phrase(rng, _FOR, _JSON_OF, g=_describe(rng, record))
        else:
            prompt = ask_for_json(rng, record)
    if rng.random() < 0.15:
        prompt = prompt.replace("JSON", "json")
    return single("json", prompt, json.dumps(record))


TABLES = (
    "make a table of {l}",
    "make a table: {l}",
    "make a table with {l}",
    "make a table from {l}",
    "write this list as a table: {l}",
    "write a table of {l}",
    "write as a table: {l}",
    "create a table of {l}",
    "create a table: {l}",
    "show this as a table: {l}",
    "show a table of {l}",
    "turn this into a table: {l}",
    "put this into a table: {l}",
    "give me a table of {l}",
    "format as a table: {l}",
    "make a markdown table of {l}",
    "write a markdown table: {l}",
    "show {l} as a markdown table",
    "make a table for {l}",
    "make a table out of {l}",
    "make this a table: {l}",
    "make a table of these people: {l}",
    "make a table of the following: {l}",
    "make a table from this: {l}",
    "build a table from {l}",
    "build a table: {l}",
    "create a table from {l}",
    "create a table with {l}",
    "create a table for {l}",
    "draw a table: {l}",
    "draw up a table of {l}",
    "format this as a table: {l}",
    "format {l} as a table",
    "convert to a table: {l}",
    "convert this to a table: {l}",
    "convert {l} to a table",
    "turn {l} into a table",
    "put {l} in a table",
    "put this in a table: {l}",
    "show as a table: {l}",
    "show me a table of {l}",
    "print a table of {l}",
    "list as a table: {l}",
    "give me a table with {l}",
    "write this as a table: {l}",
)
TABLE = ("Table: {l}", "A table of {l}", "{l} as a table", "A table, please: {l}", "Table of {l}", "table with {l}",
          "Table please: {l}", "I need a table of {l}", "I need a table: {l}", "{l}: as a table", "{l} in a table",
          "Can I have a table of {l}?", "Markdown table: {l}", "As a table: {l}")  # fmt: skip
COLUMNED = (
    "make a table with the columns {h}: {l}",
    "make a table with columns {h}: {l}",
    "make a table ({h}): {l}",
    "create a table with columns {h}: {l}",
    "write a table with the columns {h} for {l}",
    "show a table with columns {h}: {l}",
    "put this into a table with columns {h}: {l}",
)
HEADS = """
Name Age City Item Price Color Size Fruit Animal Country Year Team Points Product Amount Day Task Word Number
""".split()  # noqa: SIM905


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


@task("table", "long")
def table(rng: random.Random) -> Sample:
    if rng.random() < 0.65:
        header = ["Name", "Age", "City"]
        rows = [[word_lists.name(rng), str(rng.randint(1, 99)), word_lists.city(rng)] for _ in range(rng.randint(1, 5))]
        listed = rng.choice(("; ", "; ", "\n", " / ")).join(", ".join(row) for row in rows)
        return single("table", phrase(rng, TABLES, TABLE, l=listed), _table(header, rows))
    header = rng.sample(HEADS, rng.choice((2, 2, 3)))
    rows = [
        [word_lists.noun(rng), *(rng.choice((word_lists.noun(rng), str(rng.randint(1, 99)))) for _ in header[1:])]
        for _ in range(rng.randint(1, 5))
    ]
    pairs = rng.choice((" ", ", ", ": ")) if len(header) == 2 else ", "
    listed = rng.choice(("; ", "\n") if pairs == ", " else (", ", "; ", "\n")).join(pairs.join(row) for row in rows)
    names = ", ".join(header) if len(header) > 2 or rng.random() < 0.3 else " and ".join(header)
    return single("table", phrase(rng, COLUMNED, (), l=listed, h=names), _table(header, rows))

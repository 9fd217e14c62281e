"""Records from sentences and lists: a JSON object, a Markdown table."""

from __future__ import annotations

import random
from collections.abc import Mapping

from runtime.demo.tasks import records as shipped
from runtime.demo.tasks import word_lists
from runtime.demo.tasks.base import Sample
from training.demo.tasks.base import task
from training.demo.tasks.phrasing import phrase

_FOR = (
    *shipped.FOR, "turn this into JSON: {g}", "turn {g} into JSON", "convert to JSON: {g}", "convert {g} to JSON",
    "convert this to JSON: {g}", "put this into JSON: {g}", "put {g} into JSON", "make a JSON of {g}",
    "create JSON for {g}", "create JSON: {g}", "create a JSON record for {g}", "format as JSON: {g}",
    "format {g} as JSON", "express as JSON: {g}", "write this as JSON: {g}", "give me {g} as JSON",
    "give me this as JSON: {g}", "represent {g} in JSON", "build JSON for {g}", "output {g} as JSON",
)  # fmt: skip
_WITH = (
    *shipped.WITH, "make me a JSON with {f}", "make a JSON with {f}", "give me a JSON with {f}",
    "build JSON with {f}", "create a JSON record: {f}", "output JSON with {f}", "output JSON: {f}",
    "write a JSON object for {f}", "format {f} as JSON", "convert {f} to JSON", "turn {f} into JSON",
    "turn this into JSON: {f}", "convert to JSON: {f}", "put {f} in JSON", "put {f} into a JSON object",
    "show {f} as JSON", "represent {f} as JSON", "encode {f} in JSON", "express {f} as JSON", "store {f} as JSON",
)  # fmt: skip
_WITHOUT_VERB = (
    *shipped.WITHOUT_VERB, "I need JSON with {f}.", "I need a JSON object with {f}.", "I'd like JSON with {f}.",
    "I want a JSON record with {f}", "{f} in JSON", "{f} to JSON", "{f}. As JSON.", "{f}. JSON please",
    "JSON please: {f}", "JSON object with {f}", "JSON record: {f}", "A JSON with {f}", "Can I have JSON with {f}?",
    "JSON, {f}",
)  # fmt: skip
_JSON_OF = (
    *shipped.JSON_OF, "JSON of {g}", "{g} in JSON", "{g} to JSON", "I need JSON for {g}.",
    "I need a JSON record for {g}", "{g}, JSON please", "{g}: JSON", "A JSON record for {g}", "{g}, as JSON",
)  # fmt: skip


def _fields(rng: random.Random) -> dict[str, str | int]:
    """Returns two to four fields of a person or a thing."""
    if rng.random() < 0.5:
        return shipped.person(rng)
    made: dict[str, str | int] = {}
    if rng.random() < 0.25:
        made["name"] = rng.choice((word_lists.name, word_lists.noun))(rng)
    for _ in range(rng.randint(2, 3)):
        if rng.random() < 0.5:
            value = rng.choice((word_lists.noun, word_lists.noun, word_lists.name, word_lists.city))(rng)
            if rng.random() < 0.2:
                value = value.capitalize()
            if rng.random() < 0.08:
                value += f" {word_lists.noun(rng).capitalize()}"
            made[word_lists.made_up(rng) if rng.random() < 0.1 else rng.choice(shipped.TEXT_KEYS)] = value
        else:
            made[rng.choice(shipped.NUMBER_KEYS)] = rng.randint(0, rng.choice((20, 99, 999, 2030)))
    return made


_NAMED = (*shipped.NAMED, "the {} {}", "a {} of {}", "the {} is {}")


def _describe(rng: random.Random, person: Mapping[str, str | int]) -> str:
    """Returns a person without a verb: "Bob, 25, from Paris"."""
    parts = [rng.choice(shipped.ONE).format(n=person["name"])]
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


@task("json", "short", shipped.same_object)
def json_object(rng: random.Random) -> Sample:
    kind = rng.random()
    if kind < 0.45:
        return shipped.json_sample(rng, *shipped.sentence(rng))
    record = _fields(rng)
    if shipped.is_person(record) and kind < 0.7:
        prompt = phrase(rng, _FOR, _JSON_OF, g=_describe(rng, record))
    else:
        prompt = phrase(rng, _WITH, _WITHOUT_VERB, f=shipped.named(rng, record, _NAMED))
    return shipped.json_sample(rng, record, prompt)


_TABLES = (
    *shipped.TABLES, "make a table for {l}", "make a table out of {l}", "make this a table: {l}",
    "make a table of these people: {l}", "make a table of the following: {l}", "make a table from this: {l}",
    "build a table from {l}", "build a table: {l}", "create a table from {l}", "create a table with {l}",
    "create a table for {l}", "draw a table: {l}", "draw up a table of {l}", "format this as a table: {l}",
    "format {l} as a table", "convert to a table: {l}", "convert this to a table: {l}", "convert {l} to a table",
    "turn {l} into a table", "put {l} in a table", "put this in a table: {l}", "show as a table: {l}",
    "show me a table of {l}", "print a table of {l}", "list as a table: {l}", "give me a table with {l}",
    "write this as a table: {l}",
)  # fmt: skip
_TABLE = (
    *shipped.TABLE, "Table of {l}", "table with {l}", "Table please: {l}", "I need a table of {l}",
    "I need a table: {l}", "{l}: as a table", "{l} in a table", "Can I have a table of {l}?", "Markdown table: {l}",
    "As a table: {l}",
)  # fmt: skip


@task("table", "long")
def table(rng: random.Random) -> Sample:
    return shipped.table_sample(rng, phrase, _TABLES, _TABLE)

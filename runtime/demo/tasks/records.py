"""Records from sentences and lists: a JSON object, a Markdown table."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence

from runtime.demo.tasks import word_lists
from runtime.demo.tasks.base import Sample, single, task
from runtime.demo.tasks.phrasing import Phrase, phrase, typed

SENTENCES = (
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
SENTENCES_WITH_JOB = (
    "{n} is a {a} years old {j} and lives in {c}.",
    "{n}, {a}, is a {j} in {c}.",
    "{n} works as a {j} in {c} and is {a} years old.",
    "{n} is {a}, lives in {c} and works as a {j}.",
    "{n} from {c} is a {j} and {a} years old.",
    "The {j} {n} is {a} and lives in {c}.",
)
AS_JSON = (
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
FOR = (
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
)
WITH = (
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
)
WITHOUT_VERB = (
    "JSON with {f}",
    "A JSON object with {f}",
    "JSON object: {f}",
    "JSON: {f}",
    "A JSON record, {f}",
    "{f} as JSON",
    "{f}, as a JSON object",
)
JSON_OF = ("JSON for {g}", "JSON: {g}", "A JSON object for {g}", "{g} as JSON", "{g}. As JSON, please.")
TEXT_KEYS = """
title color product item author country street subject brand model type animal fruit team song movie language status
category size material planet company email role
""".split()  # noqa: SIM905
NUMBER_KEYS = "price amount year count pages weight height score level id number points stock seats".split()  # noqa: SIM905


def same_object(sample: Sample, text: str) -> bool:
    try:
        return bool(json.loads(text) == json.loads(sample.answer))
    except json.JSONDecodeError:
        return False


def person(rng: random.Random) -> dict[str, str | int]:
    """Returns a name and one to three other fields."""
    name = word_lists.full_name(rng)
    others = {"age": rng.randint(1, 99), "city": word_lists.city(rng), "job": rng.choice(word_lists.JOBS)}
    return {"name": name} | {key: others[key] for key in rng.sample(sorted(others), rng.randint(1, 3))}


def _fields(rng: random.Random) -> dict[str, str | int]:
    """Returns two to four fields of a person or a thing."""
    if rng.random() < 0.5:
        return person(rng)
    made: dict[str, str | int] = {}
    if rng.random() < 0.25:
        made["name"] = rng.choice((word_lists.name, word_lists.noun))(rng)
    for _ in range(rng.randint(2, 3)):
        if rng.random() < 0.5:
            value = rng.choice((word_lists.noun, word_lists.noun, word_lists.name, word_lists.city))(rng)
            made[word_lists.made_up(rng) if rng.random() < 0.1 else rng.choice(TEXT_KEYS)] = value
        else:
            made[rng.choice(NUMBER_KEYS)] = rng.randint(0, rng.choice((20, 99, 999, 2030)))
    return made


NAMED = ("{} {}", "{} {}", "{}: {}", "{}={}", "{} = {}", "{} is {}")


def named(rng: random.Random, fields: Mapping[str, str | int], forms: Sequence[str]) -> str:
    """Returns the fields as text: "name Bob, age 5", "name=Bob and age=5", ..."""
    form = rng.choice(forms)
    parts = [form.format(k, v) for k, v in fields.items()]
    if rng.random() < 0.6:
        return (", ".join(parts[:-1]) + " and " if len(parts) > 1 else "") + parts[-1]
    return ", ".join(parts)


ONE = ("{n}", "{n}", "{n}", "{n}", "a person named {n}", "a person called {n}", "someone called {n}",
        "a user named {n}", "my friend {n}", "a man named {n}", "a woman called {n}", "name {n}")  # fmt: skip


def _describe(rng: random.Random, person: Mapping[str, str | int]) -> str:
    """Returns a person without a verb: "Bob, 25, from Paris"."""
    parts = [rng.choice(ONE).format(n=person["name"])]
    for key in list(person)[1:]:
        value = person[key]
        forms = {
            "age": ("{}", "age {}", "aged {}", "{} years old", "who is {}", "age: {}", "who is {} years old"),
            "city": ("from {}", "in {}", "city {}", "of {}", "who lives in {}", "living in {}", "city: {}"),
            "job": ("a {}", "{}", "job {}", "a {} by trade", "who works as a {}", "job: {}"),
        }
        parts.append(rng.choice(forms[key]).format(value))
    return ", ".join(parts) if rng.random() < 0.7 else ", ".join(parts[:-1]) + " and " + parts[-1]


def sentence(rng: random.Random) -> tuple[dict[str, str | int], str]:
    """Returns a person, and the request to write a sentence about the person as JSON."""
    record: dict[str, str | int] = {
        "name": word_lists.full_name(rng),
        "age": rng.randint(1, 99),
        "city": word_lists.city(rng),
    }
    with_job = rng.random() < 0.4
    if with_job:
        record["job"] = rng.choice(word_lists.JOBS)
    text = rng.choice(SENTENCES_WITH_JOB if with_job else SENTENCES).format(
        n=record["name"], a=record["age"], c=record["city"], j=record.get("job")
    )
    return record, typed(rng, rng.choice(AS_JSON).format(s=text))


def is_person(record: Mapping[str, str | int]) -> bool:
    return set(record) <= {"name", "age", "city", "job"} and len(record) > 1


def json_sample(rng: random.Random, record: Mapping[str, str | int], prompt: str) -> Sample:
    return single("json", prompt.replace("JSON", "json") if rng.random() < 0.15 else prompt, json.dumps(record))


@task("json", "short", same_object)
def json_object(rng: random.Random) -> Sample:
    kind = rng.random()
    if kind < 0.45:
        return json_sample(rng, *sentence(rng))
    record = _fields(rng)
    if is_person(record) and kind < 0.7:
        prompt = phrase(rng, FOR, JSON_OF, g=_describe(rng, record))
    else:
        prompt = phrase(rng, WITH, WITHOUT_VERB, f=named(rng, record, NAMED))
    return json_sample(rng, record, prompt)


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
)
TABLE = ("Table: {l}", "A table of {l}", "{l} as a table", "A table, please: {l}")
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


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def table_sample(rng: random.Random, phrase: Phrase, tables: Sequence[str], complete: Sequence[str]) -> Sample:
    """Returns a request for a table of people, or of other things with named columns."""
    if rng.random() < 0.65:
        header = ["Name", "Age", "City"]
        rows = [[word_lists.name(rng), str(rng.randint(1, 99)), word_lists.city(rng)] for _ in range(rng.randint(2, 5))]
        listed = rng.choice(("; ", "; ", "\n", " / ")).join(", ".join(row) for row in rows)
        return single("table", phrase(rng, tables, complete, l=listed), markdown_table(header, rows))
    header = rng.sample(HEADS, rng.choice((2, 2, 3)))
    rows = [
        [word_lists.noun(rng), *(rng.choice((word_lists.noun(rng), str(rng.randint(1, 99)))) for _ in header[1:])]
        for _ in range(rng.randint(2, 4))
    ]
    pairs = rng.choice((" ", ", ", ": ")) if len(header) == 2 else ", "
    listed = rng.choice(("; ", "\n") if pairs == ", " else (", ", "; ", "\n")).join(pairs.join(row) for row in rows)
    names = ", ".join(header) if len(header) > 2 or rng.random() < 0.3 else " and ".join(header)
    return single("table", phrase(rng, COLUMNED, (), l=listed, h=names), markdown_table(header, rows))


@task("table", "long")
def table(rng: random.Random) -> Sample:
    return table_sample(rng, phrase, TABLES, TABLE)

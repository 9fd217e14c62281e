"""Records out of sentences and lists: a JSON object, a markdown table."""

from __future__ import annotations

import json
import random

from runtime.demo.tasks import words
from runtime.demo.tasks.base import Sample, ask, single, task

_SENTENCES = (
    "{n} is {a} years old and lives in {c}.",
    "{n}, {a}, lives in {c}.",
    "{n} lives in {c} and is {a} years old.",
    "{n} from {c} is {a}.",
)
_SENTENCES_WITH_JOB = (
    "{n} is a {a} years old {j} and lives in {c}.",
    "{n}, {a}, is a {j} in {c}.",
    "{n} works as a {j} in {c} and is {a} years old.",
)
_AS_JSON = ("{s} Write this as JSON.", "Write as JSON: {s}", "JSON, please: {s}", "Turn this into JSON: {s}")


def _same_object(sample: Sample, text: str) -> bool:
    try:
        return bool(json.loads(text) == json.loads(sample.answer))
    except json.JSONDecodeError:
        return False


@task("json", "short", _same_object)
def json_object(rng: random.Random) -> Sample:
    record = {"name": words.name(rng), "age": rng.randint(10, 99), "city": words.city(rng)}
    with_job = rng.random() < 0.4
    if with_job:
        record["job"] = rng.choice(words.JOBS)
    sentence = rng.choice(_SENTENCES_WITH_JOB if with_job else _SENTENCES).format(
        n=record["name"], a=record["age"], c=record["city"], j=record.get("job")
    )
    return single("json", rng.choice(_AS_JSON).format(s=sentence), json.dumps(record))


@task("table", "long")
def table(rng: random.Random) -> Sample:
    rows = [(words.name(rng), str(rng.randint(10, 99)), words.city(rng)) for _ in range(rng.randint(2, 5))]
    listed = "; ".join(", ".join(row) for row in rows)
    core = rng.choice(("make a table of {}", "write this list as a table: {}", "make a table: {}"))
    lines = ["| Name | Age | City |", "| --- | --- | --- |", *(f"| {' | '.join(row)} |" for row in rows)]
    return single("table", ask(rng, core.format(listed)), "\n".join(lines))

"""Measures the model at the edges of what its card claims: ``python -m training.demo.edges --model DIR``.

* `inside` and `outside`: values at a limit are answered, values just above it are declined.
* `compare`, `subtract` and `units`: one value is the limit, on either side, in many wordings. `back`: conversions to
  the larger unit where digits change. `remainder`: such conversions with a remainder are declined.
* `offered`: a question that no offered tool is for gets no call. `tools`: one of several tools is called.
* `forms`: a call with each form of schema that clients send.
* `turn 2` to `turn 4`: further sums of a chat, whose earlier answers are those of the model.

All prompts but those of `inside` are held out of the training.
"""

from __future__ import annotations

import argparse
import json
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import runtime
from runtime.bench.accuracy import run_task
from runtime.bench.held_out import Prompt, Task
from training.demo.tasks import Sample, all_tasks, arithmetic, beyond, comparing, held_out_samples, units
from training.demo.tasks.base import single
from training.demo.tasks.number_names import spell_out
from training.demo.tasks.tool_format import call_text, tools_text

CHATS, TURNS = 24, 4
_DRAFT = {"$schema": "http://json-schema.org/draft-07/schema#"}
_LATER_DRAFT = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
_CLOSED = {"additionalProperties": False}
_FORMS: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {  # keys before and after those of the schema
    "plain": ({}, {}),
    "$schema first": (_DRAFT, _CLOSED),
    "$schema last": ({}, _CLOSED | _DRAFT),
    "later $schema first": (_LATER_DRAFT, _CLOSED),
    "title": ({"title": "CalculatorInput"}, {}),
    "description": ({"description": "What to compute."}, _CLOSED),
}
_PARAMETERS: Mapping[str, Mapping[str, Any]] = {
    "required": {"type": "string"},
    "minLength": {"type": "string", "minLength": 1, "description": "An expression"},
    "anyOf": {"anyOf": [{"type": "string"}, {"type": "null"}], "title": "Expression"},
}
_OPTIONAL = {"precision": {"type": "integer", "default": 2}, "format": {"type": "string", "enum": ["text", "json"]}}


def _prompts(name: str, samples: Sequence[Sample]) -> Task:
    return Task(name, tuple(all_tasks()[(s.asks or s).task].prompt(s) for s in samples))


def _inside() -> Task:
    """Returns prompts with values at the limits of the card."""
    numbers = range(106, 121)
    several = (1000, 3, 998, 41, 7, 560, 89)
    reverse = "tracesilomenfard"
    pairs = (
        *((f"What is 1000 + {n}?", f"1000 + {n} = {1000 + n}.") for n in (1, 999, 1000)),
        *((f"{n} + 5", f"{n} + 5 = {n + 5}.") for n in (995, 999)),
        *((f"1000 - {n}", f"1000 - {n} = {1000 - n}.") for n in (1, 357, 999)),
        ("What is 1000 x 7?", "1000 x 7 = 7000."),
        ("999 x 9", "999 x 9 = 8991."),
        ("Which is larger, 1000 or 999?", "1000 is larger than 999."),
        ("Count from 106 to 120.", ", ".join(map(str, numbers)) + "."),
        ("Count down from 120 to 106.", ", ".join(map(str, reversed(numbers))) + "."),
        (f"Sort {', '.join(map(str, several))}.", ", ".join(map(str, sorted(several))) + "."),
        ("Sort pear, soup, bird, moon, apple.", "apple, bird, moon, pear, soup."),
        (f"Reverse {reverse}.", reverse[::-1] + "."),
        (f"Spell {reverse}.", "-".join(reverse) + "."),
        *((f"Write {n} in words.", spell_out(n) + ".") for n in (999999, 999001)),
        ("Write 3999 in Roman numerals.", "MMMCMXCIX."),
        ("Write 3998 in Roman numerals.", "MMMCMXCVIII."),
        ("How many meters are 1000 km?", "1000 km = 1000000 meters."),
        ("How many minutes are 60 hours?", "60 hours = 3600 minutes."),
        ("How many hours are 59 days?", "59 days = 1416 hours."),
        ("Write the times table of 20 up to 15.", "\n".join(f"20 x {i} = {20 * i}" for i in range(1, 16))),
        ("Fill in the blanks: 910, 920, __, 940, __, 960, 970", "910, 920, 930, 940, 950, 960, 970."),
    )
    return Task("inside", tuple(Prompt("inside", "written", single("", p, "").messages, a) for p, a in pairs))  # type: ignore[arg-type]


def _held_out(make: Callable[[], Sample]) -> Sample:
    """Returns the first sample that is held out of 10,000 ones."""
    return next(sample for sample in (make() for _ in range(10_000)) if sample.held_out)


def _outside(name: str, kinds: Sequence[str], count: int) -> Task:
    """Returns `count` requests of each kind just outside the limits."""
    samples = []
    for kind in kinds:
        make = partial(beyond.outside, random.Random(f"edges/{kind}"), kind)
        samples += [_held_out(make) for _ in range(count)]
    return _prompts(name, samples)


def _at_limits() -> Iterator[Task]:
    """Yields prompts with a value at its limit on either side, and conversions back where digits change."""
    rng, top = random.Random("edges/limits"), arithmetic.LARGEST
    others = [*rng.sample(range(top), 40), top - 1, top]
    pairs = [pair for n in others for pair in ((top, n), (n, top))]
    for name, make in (("compare", comparing.comparison), ("subtract", arithmetic.difference)):
        yield _prompts(name, [_held_out(partial(make, rng, *pair)) for pair in pairs])
    asked = [(pair, pair[3], back) for pair in units.UNITS for back in (False, True) for _ in range(3)]
    hard = [(pair, n, True) for pair in units.UNITS if pair[3] == units.OTHER for n in range(2, units.OTHER + 1, 2)]
    for name, conversions in (("units", asked), ("back", hard)):
        yield _prompts(name, [_held_out(partial(units.conversion, rng, *each)) for each in conversions])


def _pairs(seed: str) -> Iterator[tuple[int, int]]:
    """Yields operands of sums whose question, `What is A + B?`, is held out."""
    rng = random.Random(f"edges/{seed}")
    while True:
        a, b = rng.randint(0, 99), rng.randint(0, rng.choice((9, 99)))
        if single("add", f"What is {a} + {b}?", "").held_out:
            yield a, b


def _forms() -> Task:
    """Returns sums with a calculator in each form of schema."""
    cases: list[tuple[Mapping[str, Any], str, str]] = []
    operands = _pairs("forms")
    for before, after in _FORMS.values():
        for parameter in _PARAMETERS.values():
            for required in ({"required": ["expression"]}, {}):
                properties = {"expression": parameter} | ({} if required else _OPTIONAL)
                schema = {**before, "type": "object", "properties": properties, **required, **after}
                cases.append((schema, *_sum(*next(operands))))
    offered = [
        (tools_text([{"type": "function", "function": {"name": "calculator", "parameters": schema}}]), question, call)
        for schema, question, call in cases
    ]
    for parameters in ({}, {"type": "object", "properties": {}}, {**_DRAFT, "type": "object", "properties": {}}):
        date = {"name": "get_date", "description": "Get the date of today.", "parameters": parameters}
        text = tools_text([{"type": "function", "function": date}])
        offered.append((text, "What is the date?", call_text("get_date", {})))
    return Task(
        "forms",
        tuple(
            Prompt("forms", "written", ({"role": "system", "content": s}, {"role": "user", "content": q}), a, "call")
            for s, q, a in offered
        ),
    )


def _sum(a: int, b: int) -> tuple[str, str]:
    return f"What is {a} + {b}?", call_text("calculator", {"expression": f"{a}+{b}"})


def _figures(llm: Any, task: Task) -> dict[str, Any]:
    """Returns the count of prompts and of right answers, and the wrong answers with their last question."""
    answers = run_task(llm, task, {"mode": "quality"}, 128).answers
    wrong = [(p.messages[-1]["content"], a) for p, a in zip(task.prompts, answers, strict=True) if not p.is_right(a)]
    calls = [(p, a) for p, a in zip(task.prompts, answers, strict=True) if "<tool_call>" in a]
    unknown = sum(_called(answer) not in p.messages[0]["content"] for p, answer in calls)
    return {"name": task.name, "count": len(answers), "right": len(answers) - len(wrong), "unknown_calls": unknown,
            "wrong": wrong}  # fmt: skip


def _called(answer: str) -> str:
    """Returns the name of a call as a tool in the system message has it."""
    found = re.search(r'"name": "[^"]*"', answer)
    return found[0] if found else answer


def _chats(llm: Any) -> list[dict[str, Any]]:
    """Returns the figures of each turn of chats with independent sums."""
    from runtime import SamplingParams

    params = SamplingParams(max_tokens=64, temperature=0.0)
    operands = _pairs("chats")
    chats: list[list[dict[str, str]]] = [[] for _ in range(CHATS)]
    figures = []
    for turn in range(1, TURNS + 1):
        asked = [next(operands) for _ in chats]
        for chat, (a, b) in zip(chats, asked, strict=True):
            chat.append({"role": "user", "content": f"What is {a} + {b}?"})
        texts = [out.text for out in llm.generate(chats, params)]
        pairs = list(zip(asked, texts, strict=True))
        wrong = [(f"What is {a} + {b}?", text) for (a, b), text in pairs if text != f"{a} + {b} = {a + b}."]
        figures.append({"name": f"turn {turn}", "count": CHATS, "right": CHATS - len(wrong), "wrong": wrong})
        for chat, text in zip(chats, texts, strict=True):
            chat.append({"role": "assistant", "content": text})
    return figures


def main(argv: list[str] | None = None) -> int:
    runtime.wait_passively()
    parser = argparse.ArgumentParser(description="Measure the model at the edges of what its card claims.")
    parser.add_argument("--model", help="checkpoint directory; default: the shipped demo")
    parser.add_argument("--device", help="cpu or cuda; default: cuda if available")
    parser.add_argument("--n", type=int, default=96, help="prompts with tools; default: 96")
    parser.add_argument("--per-kind", type=int, default=16, help="prompts per limit; default: 16")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file")
    args = parser.parse_args(argv)
    from runtime import LLM

    tasks = (
        _inside(),
        _outside("outside", beyond.KINDS, args.per_kind),
        *_at_limits(),
        _outside("remainder", ["remainder"], args.n),
        _prompts("offered", held_out_samples(all_tasks()["tool_offered"], args.n)),
        _prompts("tools", held_out_samples(all_tasks()["tool_call"], args.n)),
        _forms(),
    )
    named = {"model": args.model, "device": args.device}
    with LLM(max_num_reqs=32, **{k: v for k, v in named.items() if v is not None}) as llm:
        figures = [*(_figures(llm, task) for task in tasks), *_chats(llm)]
    for row in figures:
        unknown = f", {row['unknown_calls']} calls of tools that were not offered" if row.get("unknown_calls") else ""
        print(f"{row['name']}: {row['right']} of {row['count']} right{unknown}")
        for question, answer in row["wrong"][:24]:
            print(f"  {question!r} -> {answer[:90]!r}")
    if args.json:
        args.json.write_text(json.dumps({"edges": figures}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

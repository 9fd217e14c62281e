"""Tests of requests outside the limits of the card, of calls among several tools, and of their measurement."""

import collections
import contextlib
import json
import random
import re
from types import SimpleNamespace

import pytest

import runtime
from runtime.bench.scoring import CHECKERS
from training.demo import edges
from training.demo.presets import PRESETS
from training.demo.tasks import all_tasks, beyond, calling, held_out_samples, units
from training.demo.tasks.greetings import REFUSAL

TOP = beyond.TOP


def tools(sample) -> dict[str, dict]:
    """Returns the offered functions by name."""
    lines = re.findall(r'^{"type": "function".*$', sample.messages[0]["content"], re.MULTILINE)
    return {tool["function"]["name"]: tool["function"] for tool in map(json.loads, lines)}


def numbers(text: str) -> list[float]:
    return [float(n.replace(",", "")) for n in re.findall(r"\d+(?:,\d{3})*(?:\.\d+)?", text)]


@pytest.mark.parametrize("kind", ["sum", "difference", "product"])
def test_a_declined_calculation_has_a_number_that_no_answered_one_has(kind) -> None:
    task = {"sum": "add", "difference": "subtract", "product": "multiply"}[kind]
    for sample in held_out_samples(all_tasks()[task], 300):
        assert max(numbers(sample.answer.split(" = ")[0])) <= TOP
    rng = random.Random(kind)
    for _ in range(300):
        found = numbers(beyond.outside(rng, kind).messages[0]["content"])
        assert max(found) > TOP or any(n % 1 for n in found), found


def test_most_values_outside_are_close_to_the_limit() -> None:
    rng = random.Random(0)
    drawn = [max(numbers(beyond.outside(rng, "sum").messages[0]["content"])) for _ in range(400)]
    assert sum(TOP < n <= 1.1 * TOP for n in drawn) > 80


def test_every_kind_outside_is_drawn_and_declined() -> None:
    assert {sample.answer for sample in held_out_samples(all_tasks()["beyond"], 200)} == {REFUSAL}
    for kind in beyond.KINDS:
        rng = random.Random(kind)
        prompts = {beyond.outside(rng, kind).messages[-1]["content"] for _ in range(50)}
        assert len(prompts) > 40, kind


@pytest.mark.parametrize("name", ["compare", "subtract", "units"])
def test_one_sample_in_twelve_has_its_limit(name) -> None:
    rng = random.Random(name)
    drawn = [all_tasks()[name].make(rng).answer for _ in range(600)]
    assert sum(bool({float(TOP), 60.0} & {*numbers(text)}) for text in drawn) > 50


def test_values_at_limits_are_asked_on_either_side() -> None:
    tasks = {task.name: [numbers(p.answer) for p in task.prompts] for task in edges._at_limits()}
    for side in (0, 1):
        assert sum(found[side] == TOP for found in tasks["subtract"]) == 43
        assert sum(found[side] in (TOP, 60) for found in tasks["units"]) == 51
    assert all(TOP in found for found in tasks["compare"])
    assert all(found[0] > found[1] for found in tasks["back"])


def test_a_remainder_is_left_by_each_declined_conversion() -> None:
    factors = {(u, v): pair[2] for pair in units.UNITS for u in pair[1] for v in pair[0]}
    rng = random.Random(0)
    for _ in range(300):
        text = beyond.outside(rng, "remainder").messages[0]["content"]
        (number,) = numbers(text)
        words = set(re.findall(r"[a-z]+", text))
        possible = [factor for (u, v), factor in factors.items() if {u, v} <= words]
        assert not possible or any(number % factor for factor in possible), text


@pytest.mark.parametrize("names", [("days", "weeks"), ("feet", "yards"), ("hours", "days")])
def test_conversions_to_a_larger_unit_are_answered_more_often_than_declined(names) -> None:
    """With as many of both, the model declines those that are hard to tell apart."""

    def drawn(task: str) -> list[str]:
        rng = random.Random(task)
        samples = [all_tasks()[task].make(rng) for _ in range(6000)]
        return [s.answer if task == "units" else s.messages[0]["content"] for s in samples]

    converted = re.compile(r"\d+ {}s? = \d+ {}s?\.".format(*(name.removesuffix("s") for name in names)))
    answered = sum(bool(converted.fullmatch(text.replace("foot", "feet"))) for text in drawn("units"))
    declined = sum(set(names) <= set(re.findall("[a-z]+", text)) for text in drawn("beyond"))
    weights = PRESETS["gpu"].tasks
    assert 1.4 < answered * weights["units"] / (declined * weights["beyond"]) < 2.6


def test_a_call_is_of_an_offered_tool_with_its_parameters() -> None:
    several, first_keys = 0, collections.Counter()
    for sample in held_out_samples(all_tasks()["tool_call"], 600):
        offered = tools(sample)
        call = json.loads(sample.answer.split("\n")[1])
        schema = offered[call["name"]].get("parameters", {})
        assert set(call["arguments"]) <= set(schema.get("properties", {}))
        assert set(schema.get("required", ())) <= set(call["arguments"])
        several += len(offered) > 1
        first_keys.update([next(iter(schema), "")])
    assert several > 100
    assert min(first_keys[key] for key in ("$schema", "type")) > 50


def test_no_offered_tool_is_for_a_question_without_a_call() -> None:
    declined = 0
    for sample in held_out_samples(all_tasks()["tool_offered"], 600):
        assert "<tool_call>" not in sample.answer
        declined += sample.answer == REFUSAL
        signs = re.match(r"\d+ ([-+x]) \d+ = ", sample.answer)
        if signs and sample.asks.task in ("add", "subtract", "multiply", "product"):
            for name in tools(sample):
                assert name not in calling._CALCULATORS
                assert name not in calling._TWO[signs[1]]
    assert 100 < declined < 400


def test_half_of_the_dialogues_repeat_a_task() -> None:
    """Otherwise a second sum takes digits of the first."""
    pairs = 0
    for sample in held_out_samples(all_tasks()["dialogue"], 400):
        before = [m["content"] for m in sample.messages if m["role"] == "assistant"]
        sums = [text for text in (*before[-1:], sample.answer) if re.fullmatch(r"\d+ \+ \d+ = \d+\.", text)]
        pairs += len(sums) == 2
    assert pairs > 30


def generate(prompts, params):
    """Answers sums of chats rightly, but every fifth second one, and calls a tool that nobody offers otherwise."""
    texts = []
    for at, messages in enumerate(prompts):
        found = re.fullmatch(r"What is (\d+) \+ (\d+)\?", messages[-1]["content"])
        if found is None or messages[0]["role"] == "system":
            texts.append('<tool_call>\n{"name": "nothing", "arguments": {}}\n</tool_call>')
        else:
            a, b = map(int, found.groups())
            texts.append(f"{a} + {b} = {a + b + (len(messages) == 3 and at % 5 == 0)}.")
    return [SimpleNamespace(text=text, token_ids=[1], eos=0, nfe=1) for text in texts]


def test_wrong_turns_and_calls_of_unknown_tools_are_counted(monkeypatch, tmp_path, capsys) -> None:
    monkeypatch.setattr(runtime, "LLM", lambda **flags: contextlib.nullcontext(SimpleNamespace(generate=generate)))
    out = tmp_path / "edges.json"
    assert edges.main(["--n", "16", "--per-kind", "1", "--json", str(out)]) == 0
    rows = {row["name"]: row for row in json.loads(out.read_text())["edges"]}
    assert [rows[f"turn {turn}"]["right"] for turn in range(1, edges.TURNS + 1)] == [24, 19, 24, 24]
    assert [rows[name]["unknown_calls"] for name in ("offered", "tools")] == [16, 16]
    assert rows["outside"]["count"] == len(beyond.KINDS)
    assert "16 calls of tools that were not offered" in capsys.readouterr().out


def test_every_form_of_schema_is_asked_with_another_sum() -> None:
    task = edges._forms()
    asked = [(p.messages[0]["content"], p.messages[1]["content"]) for p in task.prompts]
    assert len(asked) == len(set(asked)) == 39
    assert all(CHECKERS["call"](p.answer, {}, p.answer) for p in task.prompts)

"""Tests of the everyday prompts: their checkers, their absence from training, and the shipped model's answers."""

import json

import pytest

from runtime import LLM, SamplingParams
from runtime.demo import everyday
from runtime.demo.tasks import all_tasks, draw
from runtime.demo.tasks.greetings import REFUSAL
from runtime.demo.tasks.sudoku import solutions

PROMPTS, CLAIMED, DECLINED = (everyday.prompts(name) for name in everyday.NAMES)
SAMPLED, WRONG = 60, 6


def right_answer(sample):
    """Returns the simplest right answer that a checker has to accept."""
    expected = sample.answer
    if sample.facts["kind"] == "count":
        first, last = map(int, expected.split())
        return ", ".join(map(str, range(first, last + 1) if last > first else range(first, last - 1, -1)))
    if sample.facts["kind"] == "table":
        head, *rows = (f"| {' | '.join(row.split(','))} |" for row in expected.split(";"))
        return "\n".join([head, "|" + " --- |" * expected.split(";")[0].count(",") + " --- |", *rows])
    if sample.facts["kind"] == "sudoku":
        fits = [s for s in solutions() if all(g in ("_", c) for g, c in zip(expected, s, strict=True))]
        (solved,) = fits
        return "\n".join(solved[i : i + 4] for i in range(0, 16, 4))
    return {
        "number": f"That makes {expected}.",
        "starts": f"{expected}, that is so.",
        "numbers": ", ".join(expected.split()) + ".",
        "spelled": "-".join(expected) + ".",
        "reversed": expected[::-1] + ".",
        "json": expected,
        "says": f"Well: {expected}.",
        "story": f"Once. There was. The {expected.replace(',', ' ')}. And so. The end.",
        "calls": f'<tool_call>\n{{"name": "calculator", "arguments": {{"expression": "{expected}"}}}}\n</tool_call>',
    }[sample.facts["kind"]]


def test_there_are_three_hundred_of_every_kind() -> None:
    assert len({s.messages[-1]["content"] for s in PROMPTS}) == 300
    assert {s.facts["kind"] for s in PROMPTS} == set(everyday.CHECKERS) - {"declined"}


def test_there_are_two_hundred_of_claimed_kinds_and_half_as_many_to_decline() -> None:
    assert len({s.messages[-1]["content"] for s in CLAIMED}) == 200
    assert len({s.messages[-1]["content"] for s in DECLINED}) == 120
    assert not {s.messages[-1]["content"] for s in (*CLAIMED, *DECLINED)} & {s.messages[-1]["content"] for s in PROMPTS}
    assert {s.facts["kind"] for s in DECLINED} == {"declined"}


def test_a_prompt_has_its_earlier_turns() -> None:
    followups = [s.messages for s in CLAIMED if len(s.messages) > 1]
    assert len(followups) == 8
    assert all([m["role"] for m in messages] == ["user", "assistant", "user"] for messages in followups)


def test_only_the_refusal_declines() -> None:
    for sample in DECLINED:
        assert everyday.check(sample, REFUSAL)
        assert not everyday.check(sample, f"That is {sample.answer}.")
        assert not everyday.check(sample, "")


def test_right_answers_pass_and_others_do_not() -> None:
    for sample in (*PROMPTS, *CLAIMED):
        answer = right_answer(sample)
        assert everyday.check(sample, answer), sample
        assert not everyday.check(sample, "")
        assert not everyday.check(sample, "Sorry, I cannot do that.")
        if sample.facts["kind"] != "starts":
            assert not everyday.check(sample, answer[: len(answer) // 3])


def test_an_answer_to_one_prompt_does_not_pass_for_another() -> None:
    for sample in PROMPTS:
        same_kind = [s for s in PROMPTS if s.facts == sample.facts and s.answer != sample.answer]
        if sample.facts["kind"] not in ("says", "story"):
            assert not any(everyday.check(sample, right_answer(other)) for other in same_kind), sample


def test_a_result_is_the_last_number() -> None:
    sample = next(s for s in PROMPTS if s.facts["kind"] == "number" and s.answer == "-5")
    assert everyday.check(sample, "10 - 15 = -5.")
    assert not everyday.check(sample, "10 - 15 = 5.")
    assert not everyday.check(sample, "-5 is what remains of 10.")


def test_training_does_not_use_the_everyday_prompts() -> None:
    """No task reads the file, so training draws few of its prompts. Some, such as "12 + 30", may coincide."""
    mine = {s.messages[-1]["content"] for s in (*PROMPTS, *CLAIMED, *DECLINED)}
    seen = set()
    for task in all_tasks().values():
        stream = draw(task, "training", held_out=False)
        seen |= mine & {next(stream).messages[-1]["content"] for _ in range(1500)}
    assert len(seen) <= 30, seen


@pytest.fixture(scope="module")
def llm():
    with LLM(device="cpu", max_num_reqs=48) as model:
        yield model


def wrong_answers(llm, samples):
    params = SamplingParams(max_tokens=400, temperature=0.0, decoding={"mode": "quality"})
    outs = llm.generate([s.messages for s in samples], params)
    listed = [
        (s.messages[-1]["content"], o.text) for s, o in zip(samples, outs, strict=True) if not everyday.check(s, o.text)
    ]
    return listed


@pytest.mark.matrix
def test_the_shipped_model_answers_some_everyday_prompts(llm) -> None:
    wrong = wrong_answers(llm, everyday.chosen(SAMPLED))
    assert len(wrong) <= WRONG, json.dumps(wrong, indent=1)


@pytest.mark.matrix
def test_the_shipped_model_answers_nearly_all_claimed_prompts(llm) -> None:
    """The model card states the figure."""
    wrong = wrong_answers(llm, CLAIMED)
    assert len(wrong) <= 10, json.dumps(wrong, indent=1)


@pytest.mark.matrix
def test_the_shipped_model_declines_unsupported_requests(llm) -> None:
    wrong = wrong_answers(llm, DECLINED)
    assert len(wrong) <= 6, json.dumps(wrong, indent=1)


@pytest.mark.slow
def test_the_shipped_model_answers_nearly_all_everyday_prompts(llm) -> None:
    wrong = wrong_answers(llm, PROMPTS)
    assert len(wrong) <= 15, json.dumps(wrong, indent=1)

"""Generators against checkers, the split, and the size of the prompt space."""

import functools
import random
import re

import pytest

from runtime.demo.tasks import Task, all_tasks, draw, held_out_samples
from runtime.demo.tasks.number_names import spell_out
from runtime.demo.tasks.sudoku import is_solved, solutions

TASKS = list(all_tasks().values())
IDS = [t.name for t in TASKS]
LONG = {"long_add", "number_words", "times_table", "table", "sudoku", "story", "fill"} | {
    *("product", "count_far", "story_any", "story_free"),
}


def test_short_and_long_are_the_specified_tasks() -> None:
    assert {t.name for t in TASKS if t.kind == "long"} == LONG
    assert {t.name for t in TASKS if t.kind == "short"} == {
        *("add", "subtract", "multiply", "compare", "count", "sort", "reverse", "spell"),
        *("units", "json", "followup", "dialogue", "refuse", "greet", "small_talk", "abilities"),
        *("about", "roman", "tool_call", "tool_answer", "tool_offered"),
    }


@pytest.mark.parametrize("task", TASKS, ids=IDS)
def test_held_out_prompts_are_many_distinct_and_never_in_training(task) -> None:
    held = held_out_samples(task, 100)
    prompts = {tuple(m["content"] for m in s.messages) for s in held}
    assert len(prompts) == 100
    stream = draw(task, "train", held_out=False)
    trained = {tuple(m["content"] for m in next(stream).messages) for _ in range(500)}
    assert not prompts & trained


@pytest.mark.parametrize("task", TASKS, ids=IDS)
def test_the_seed_decides_the_samples(task) -> None:
    assert held_out_samples(task, 20, 3) == held_out_samples(task, 20, 3)
    assert held_out_samples(task, 20, 3) != held_out_samples(task, 20, 4)


@pytest.mark.parametrize("task", TASKS, ids=IDS)
def test_right_answers_pass(task) -> None:
    assert all(task.check(s, s.answer) and task.check(s, s.answer + "\n") for s in held_out_samples(task, 200))


def damaged(text: str, rng: random.Random) -> str:
    """The text with a digit or a word's letter changed, a line or the end lost."""
    kind = rng.randrange(3)
    if kind == 0 and (digit_offsets := [i for i, c in enumerate(text) if c.isdigit()]):
        at = rng.choice(digit_offsets)
        return text[:at] + str((int(text[at]) + rng.randint(1, 9)) % 10) + text[at + 1 :]
    if kind == 1:
        return text[: rng.randint(0, max(0, len(text.strip()) - 2))]
    at = rng.choice([i for i, c in enumerate(text) if c.isalnum()])
    return text[:at] + "#" + text[at + 1 :]


@pytest.mark.parametrize("task", [t for t in TASKS if t.name != "refuse"], ids=[n for n in IDS if n != "refuse"])
def test_damaged_answers_fail(task) -> None:
    rng = random.Random(5)
    for sample in held_out_samples(task, 200):
        if sample.asks is not None and sample.asks.task == "refuse":
            continue  # has many right answers
        assert not task.check(sample, damaged(sample.answer, rng))
        assert not task.check(sample, "")


def test_a_refusal_may_be_worded_otherwise_but_must_refuse() -> None:
    task = all_tasks()["refuse"]
    sample = held_out_samples(task, 1)[0]
    assert task.check(sample, "Sorry, I cannot do that.")
    for text in ("Sorry, I can do that.", "5 + 5 = 10.", "", "Sorry, I cannot do that. " * 4):
        assert not task.check(sample, text)


def has_all(text: str, facts) -> bool:
    return all(value in text for value in facts.values())


def test_answers_of_one_task_do_not_pass_for_another_prompt() -> None:
    constant = {"abilities", "refuse", "greet", "story_free"}  # one answer is right, or very many are
    for task in TASKS:
        if task.name in constant:
            continue
        a, *others = held_out_samples(task, 30)
        # a story that happens to have all that was asked for is an answer
        different = [s for s in others if s.answer != a.answer and not (a.facts and has_all(s.answer, a.facts))]
        assert different
        assert not any(task.check(a, s.answer) for s in different), task.name


def test_sums_are_right() -> None:
    for name, apply in (("add", int.__add__), ("subtract", int.__sub__), ("multiply", int.__mul__)):
        for sample in held_out_samples(all_tasks()[name], 300):
            *terms, result = map(
                int, re.fullmatch(r"\d+(?: [-+x] \d+)+ = -?\d+\.", sample.answer) and numbers(sample.answer)
            )
            assert functools.reduce(apply, terms) == result
            assert set(terms) == set(numbers(sample.messages[0]["content"]))


def numbers(text: str) -> list[int]:
    return [int(n) for n in re.findall(r"(?<!\d)-?\d+", re.sub(r"(?<=\d) ?- ?(?=\d)", " ", text))]


def test_every_step_of_a_multiplication_is_right() -> None:
    for sample in held_out_samples(all_tasks()["product"], 300):
        steps = sample.answer.rstrip(".").split(" = ")
        a, b = map(int, steps[0].split(" x "))
        for step in steps:
            values = [eval(part.replace("x", "*")) for part in step.split(" + ")]
            assert sum(values) == a * b
        assert len(steps) >= 4


def test_every_sudoku_has_one_solution() -> None:
    assert len(solutions()) == 288
    assert all(map(is_solved, solutions()))
    for sample in held_out_samples(all_tasks()["sudoku"], 100):
        clues = sample.facts["givens"]
        fits = [s for s in solutions() if all(g in ("_", c) for g, c in zip(clues, s, strict=True))]
        assert ["".join(sample.answer.split("\n"))] == fits
        shown = re.sub(r"[^\d\n]", "", sample.messages[0]["content"].replace("4x4", "").replace("0", ""))
        assert all(re.sub("_", "", line) in shown for line in re.findall("....", clues))


def test_a_sudoku_that_drops_a_clue_fails() -> None:
    task = all_tasks()["sudoku"]
    sample = held_out_samples(task, 1)[0]
    other = next(s for s in solutions() if "\n".join(re.findall("....", s)) != sample.answer)
    assert not task.check(sample, "\n".join(re.findall("....", other)))


def assert_stories_keep_names(task: Task) -> None:
    """Stories of the same request may differ, but not in the names that it has."""
    rng = random.Random(1)
    samples = [s for s in (task.make(rng) for _ in range(6000)) if s.facts.get("he") == "Anna"]
    pairs = [(a, b) for a in samples for b in samples if a.facts == b.facts and a.answer != b.answer]
    assert pairs
    assert all(task.check(a, b.answer) for a, b in pairs)
    assert not any(task.check(a, a.answer.replace("Anna", "Ben", 1)) for a, _ in pairs)


def test_a_story_may_choose_but_must_keep_its_names() -> None:
    assert_stories_keep_names(all_tasks()["story"])


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "zero"),
        (13, "thirteen"),
        (40, "forty"),
        (99, "ninety-nine"),
        (100, "one hundred"),
        (1001, "one thousand one"),
        (482913, "four hundred eighty-two thousand nine hundred thirteen"),
        (999999, "nine hundred ninety-nine thousand nine hundred ninety-nine"),
    ],
)
def test_spell_out(number: int, text: str) -> None:
    assert spell_out(number) == text

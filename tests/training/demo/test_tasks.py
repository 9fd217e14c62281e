"""Tests of the tasks: their answers, the held-out split, and the file of held-out prompts."""

import collections
import functools
import random
import re

import msgspec
import pytest

from runtime.bench.held_out import HELD_OUT, read_tasks
from runtime.bench.scoring import is_solved
from training.demo import held_out
from training.demo.tasks import all_tasks, draw, held_out_samples
from training.demo.tasks.number_names import spell_out
from training.demo.tasks.phrasing import mistyped
from training.demo.tasks.story import plot_of
from training.demo.tasks.sudoku import solutions


def answers(name: str, count: int) -> list[str]:
    return [sample.answer for sample in held_out_samples(all_tasks()[name], count)]


def numbers(text: str) -> list[int]:
    return [int(n) for n in re.findall(r"(?<!\d)-?\d+", re.sub(r"(?<=\d) ?- ?(?=\d)", " ", text))]


def test_the_file_of_held_out_prompts_is_up_to_date(tmp_path) -> None:
    assert held_out.main(["--out", str(tmp_path / "prompts.jsonl")]) == 0
    assert (tmp_path / "prompts.jsonl").read_bytes() == HELD_OUT.read_bytes(), "run python -m training.demo.held_out"


def test_training_draws_no_held_out_prompt_and_few_that_people_wrote() -> None:
    """Some of the latter, such as "12 + 30", may coincide."""
    shipped = [prompt for task in read_tasks().values() for prompt in task.prompts]
    held = {(prompt.task, msgspec.json.encode(prompt.messages)) for prompt in shipped if prompt.kind != "written"}
    written = {prompt.messages[-1]["content"] for prompt in shipped if prompt.kind == "written"}
    assert (len(held), len(written)) == (held_out.COUNT * len(all_tasks()), 300 + 200 + 120)
    drawn = set()
    for task in all_tasks().values():
        stream = draw(task, "training", held_out=False)
        for _ in range(1500):
            messages = next(stream).messages
            assert (task.name, msgspec.json.encode(messages)) not in held
            drawn.add(messages[-1]["content"])
    assert len(written & drawn) <= 30, written & drawn


def test_sums_are_right() -> None:
    for name, apply in (("add", int.__add__), ("subtract", int.__sub__), ("multiply", int.__mul__)):
        for sample in held_out_samples(all_tasks()[name], 300):
            assert re.fullmatch(r"\d+(?: [-+x] \d+)+ = -?\d+\.", sample.answer)
            *terms, result = numbers(sample.answer)
            assert functools.reduce(apply, terms) == result
            assert set(terms) == set(numbers(sample.messages[0]["content"]))


def test_every_step_of_a_multiplication_is_right() -> None:
    for answer in answers("product", 300):
        steps = answer.rstrip(".").split(" = ")
        a, b = map(int, steps[0].split(" x "))
        assert len(steps) >= 4
        assert all(sum(eval(part.replace("x", "*")) for part in step.split(" + ")) == a * b for step in steps)


def test_every_sudoku_has_one_solution() -> None:
    assert len(solutions()) == 288
    assert all(map(is_solved, solutions()))
    for sample in held_out_samples(all_tasks()["sudoku"], 100):
        clues = sample.facts["givens"]
        fits = [s for s in solutions() if all(g in ("_", c) for g, c in zip(clues, s, strict=True))]
        assert ["".join(sample.answer.split("\n"))] == fits
        shown = re.sub(r"[^\d\n]", "", sample.messages[0]["content"].replace("4x4", "").replace("0", ""))
        assert all(re.sub("_", "", line) in shown for line in re.findall("....", clues))


def test_a_story_may_choose_its_plot_and_all_plots_are_equally_frequent() -> None:
    task, rng = all_tasks()["story"], random.Random(1)
    samples = [s for s in (task.make(rng) for _ in range(6000)) if s.facts.get("he") == "Anna"]
    pairs = [(a, b) for a in samples for b in samples if a.facts == b.facts and a.answer != b.answer]
    assert pairs
    assert all(task.check(a, b.answer) for a, b in pairs)
    counts = collections.Counter(map(plot_of, answers("story_free", 700)))
    assert None not in counts
    assert len(counts) == 11
    assert min(counts.values()) > 40


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "zero"), (13, "thirteen"), (40, "forty"), (99, "ninety-nine"), (100, "one hundred"),
        (1001, "one thousand one"), (482913, "four hundred eighty-two thousand nine hundred thirteen"),
        (999999, "nine hundred ninety-nine thousand nine hundred ninety-nine"),
    ],
)  # fmt: skip
def test_spell_out(number: int, text: str) -> None:
    assert spell_out(number) == text


def test_near_misses_are_not_computable() -> None:
    for sample in held_out_samples(all_tasks()["near_miss"], 300):
        assert not re.fullmatch(r"\d+ [-+x*] \d+( =)?", sample.messages[0]["content"]), sample


def test_a_typo_changes_one_word_and_no_field() -> None:
    for seed in range(50):
        written = mistyped(random.Random(seed), "what is {word} plus {b}")
        assert written != "what is {word} plus {b}"
        assert "{word}" in written
        assert "{b}" in written
    assert mistyped(random.Random(0), "{e} =") == "{e} ="


def test_a_wording_of_a_sum_has_one_order_of_operands() -> None:
    """A checker expects the operands in one order, which must follow from the wording."""
    patterns = {  # pattern -> whether the answer has the other order
        r"\b(\d+) added to (\d+)\b|\badd (\d+) to (\d+)\b": True,
        r"\b(?:increase|raise) (\d+) by (\d+)\b": False,
    }
    seen = collections.Counter()
    for sample in held_out_samples(all_tasks()["add"], 4000):
        for pattern, reverse in patterns.items():
            if found := re.search(pattern, sample.messages[0]["content"], re.IGNORECASE):
                first, second = [n for n in found.groups() if n is not None]
                expected = (second, first) if reverse else (first, second)
                assert sample.answer.startswith("{} + {} =".format(*expected)), sample
                seen[pattern] += 1
    assert min(seen[pattern] for pattern in patterns) > 20


def test_a_sequence_has_a_blank_for_every_missing_number() -> None:
    for sample in held_out_samples(all_tasks()["fill"], 1000):
        prompt, answer = sample.messages[0]["content"], sample.answer.rstrip(".")
        if "+" in answer or "x" in answer:
            continue
        blanks = re.findall(r"_+|\.\.\.|(?<= )\?", prompt)
        assert len(re.findall(r"\d+", prompt)) + len(blanks) >= len(answer.split(", ")), sample


def test_lists_and_counts_reach_the_limits_of_the_card() -> None:
    sorted_lists = [numbers(answer) for answer in answers("sort", 400)]
    assert max(map(len, sorted_lists)) == 7
    assert max(max(found, default=0) for found in sorted_lists) >= 999  # of 1,000
    assert max(max(numbers(answer)) for answer in answers("count_far", 400)) == 120

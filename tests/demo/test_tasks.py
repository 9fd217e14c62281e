"""Tests of the tasks: generators against checkers, the held-out split, and the size of the prompt space."""

import collections
import functools
import random
import re

import pytest

from runtime.demo import everyday
from runtime.demo.tasks import all_tasks, draw, held_out_samples
from runtime.demo.tasks.greetings import REFUSAL
from runtime.demo.tasks.number_names import spell_out
from runtime.demo.tasks.phrasing import mistyped
from runtime.demo.tasks.story import plot_of
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
        *("about", "roman", "near_miss", "tool_call", "tool_answer", "tool_offered"),
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
    """Returns the text with another digit or a wrong character, or cut off."""
    kind = rng.randrange(3)
    if kind == 0 and (digit_offsets := [i for i, c in enumerate(text) if c.isdigit()]):
        at = rng.choice(digit_offsets)
        return text[:at] + str((int(text[at]) + rng.randint(1, 9)) % 10) + text[at + 1 :]
    if kind == 1:
        return text[: rng.randint(0, max(0, len(text.strip()) - 2))]
    at = rng.choice([i for i, c in enumerate(text) if c.isalnum()])
    return text[:at] + "#" + text[at + 1 :]


REFUSING = ("refuse", "near_miss")  # these have many right answers


@pytest.mark.parametrize("task", [t for t in TASKS if t.name not in REFUSING], ids=lambda task: task.name)
def test_damaged_answers_fail(task) -> None:
    rng = random.Random(5)
    for sample in held_out_samples(task, 200):
        if sample.asks is not None and sample.asks.task in REFUSING:
            continue
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
    constant = {"abilities", *REFUSING, "greet", "story_free"}  # one answer is right for all prompts, or very many are
    for task in TASKS:
        if task.name in constant:
            continue
        a, *others = held_out_samples(task, 30)
        # A story that happens to have all requested facts is a right answer.
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


def test_a_story_may_choose_its_plot_but_must_keep_its_names() -> None:
    task = all_tasks()["story"]
    rng = random.Random(1)
    samples = [s for s in (task.make(rng) for _ in range(6000)) if s.facts.get("he") == "Anna"]
    pairs = [(a, b) for a in samples for b in samples if a.facts == b.facts and a.answer != b.answer]
    assert pairs
    assert all(task.check(a, b.answer) for a, b in pairs)
    assert not any(task.check(a, a.answer.replace("Anna", "Ben", 1)) for a, _ in pairs)


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


def test_training_does_not_use_the_files_of_everyday_prompts() -> None:
    """No task reads the files, so training draws few of their prompts. Some, such as "12 + 30", may coincide."""
    written = {s.messages[-1]["content"] for name in everyday.TASKS for s in everyday.chosen(500, 0, name)}
    assert len(written) == 300 + 200 + 120
    drawn = set()
    for task in all_tasks().values():
        stream = draw(task, "training", held_out=False)
        drawn |= {next(stream).messages[-1]["content"] for _ in range(1500)}
    assert len(written & drawn) <= 40, written & drawn


def test_near_misses_are_declined_and_computable_requests_are_not() -> None:
    samples = held_out_samples(all_tasks()["near_miss"], 300)
    assert {s.answer for s in samples} == {REFUSAL}
    for sample in samples:
        assert not re.fullmatch(r"\d+ [-+x*] \d+( =)?", sample.messages[0]["content"]), sample


def test_a_typo_changes_one_word_and_no_field() -> None:
    for seed in range(50):
        written = mistyped(random.Random(seed), "what is {word} plus {b}")
        assert written != "what is {word} plus {b}"
        assert "{word}" in written
        assert "{b}" in written
    assert mistyped(random.Random(0), "{e} =") == "{e} ="


def test_all_plots_are_equally_frequent() -> None:
    stories = [s.answer for s in held_out_samples(all_tasks()["story_free"], 700)]
    counts = collections.Counter(map(plot_of, stories))
    assert None not in counts
    assert len(counts) == 7
    assert min(counts.values()) > 60


def test_a_wording_of_a_sum_has_one_order_of_operands() -> None:
    """A checker expects the operands in one order, which must follow from the wording."""
    patterns = {r"add(?:ed)? to": (r"\b(\d+) added to (\d+)\b|\badd (\d+) to (\d+)\b", True)}
    patterns |= {"by": (r"\b(?:increase|raise) (\d+) by (\d+)\b", False)}
    seen = collections.Counter()
    for sample in held_out_samples(all_tasks()["add"], 4000):
        for name, (pattern, reverse) in patterns.items():
            if found := re.search(pattern, sample.messages[0]["content"], re.IGNORECASE):
                first, second = [n for n in found.groups() if n is not None]
                expected = (second, first) if reverse else (first, second)
                assert sample.answer.startswith("{} + {} =".format(*expected)), sample
                seen[name] += 1
    assert min(seen[name] for name in patterns) > 20


def test_a_sequence_has_a_blank_for_every_missing_number() -> None:
    for sample in held_out_samples(all_tasks()["fill"], 1000):
        prompt, answer = sample.messages[0]["content"], sample.answer.rstrip(".")
        if "+" in answer or "x" in answer:
            continue
        blanks = re.findall(r"_+|\.\.\.|(?<= )\?", prompt)
        assert len(re.findall(r"\d+", prompt)) + len(blanks) >= len(answer.split(", ")), sample


def test_lists_and_counts_reach_the_limits_of_the_card() -> None:
    def largest(name):
        answers = [list(map(int, re.findall(r"\d+", s.answer))) for s in held_out_samples(all_tasks()[name], 400)]
        return max(map(len, answers)), max(map(max, (a for a in answers if a)))

    assert largest("sort") == (7, 998)  # of 999
    assert largest("count_far")[1] == 120

"""The wider tasks of the next training: generators against checkers, the split, and what they widen."""

import collections
import json
import random
import re
from types import SimpleNamespace

import pytest

import runtime
from runtime.bench.accuracy import chosen_tasks
from runtime.demo import everyday
from runtime.demo import tasks as shipped
from runtime.demo.tasks import draw, held_out_samples
from runtime.demo.tasks.greetings import REFUSAL
from tests.demo.test_tasks import assert_stories_keep_names, damaged
from training.demo import evaluate, plots
from training.demo.presets import PRESETS
from training.demo.tasks import all_tasks
from training.demo.tasks.phrasing import mistyped
from training.demo.tasks.story import plot_of, write
from training.demo.tokenizer import ChatEncoder, make_tokenizer

WIDER = [task for name, task in all_tasks().items() if task != shipped.all_tasks().get(name)]
REFUSING = ("refuse", "near_miss")  # these have many right answers
each_task = pytest.mark.parametrize("task", WIDER, ids=lambda task: task.name)


def test_the_training_has_every_task_and_the_benchmark_those_of_the_shipped_checkpoint() -> None:
    assert set(PRESETS["gpu"].tasks) == set(all_tasks()) == set(shipped.all_tasks()) | {"near_miss"}
    assert all(task.kind == all_tasks()[name].kind for name, task in shipped.all_tasks().items())
    assert chosen_tasks(None) == list(shipped.all_tasks().values())
    assert chosen_tasks(None, known=all_tasks()) == list(all_tasks().values())
    assert not {task.make for task in WIDER} & {task.make for task in shipped.all_tasks().values()}


def test_an_evaluation_measures_the_wider_tasks(capsys) -> None:
    assert evaluate.main(["--device", "cpu", "--tasks", "near_miss", "--n", "2"]) == 0
    assert "near_miss" in capsys.readouterr().out


@each_task
def test_held_out_prompts_are_many_distinct_and_never_in_training(task) -> None:
    prompts = {tuple(m["content"] for m in s.messages) for s in held_out_samples(task, 100)}
    assert len(prompts) == 100
    stream = draw(task, "train", held_out=False)
    assert not prompts & {tuple(m["content"] for m in next(stream).messages) for _ in range(500)}


@each_task
def test_right_answers_pass_and_damaged_ones_fail(task) -> None:
    rng = random.Random(5)
    for sample in held_out_samples(task, 200):
        assert task.check(sample, sample.answer)
        assert task.check(sample, sample.answer + "\n")
        if task.name not in REFUSING and (sample.asks is None or sample.asks.task not in REFUSING):
            assert not task.check(sample, damaged(sample.answer, rng))
            assert not task.check(sample, "")


def test_training_draws_its_prompts_from_no_file_of_people_s_prompts() -> None:
    """Their words may meet, as "12 + 30" does; but no task reads the files, and hardly any prompt comes up."""
    written = {s.messages[-1]["content"] for name in everyday.TASKS for s in everyday.chosen(500, 0, name)}
    assert len(written) == 300 + 200 + 120
    drawn = set()
    for task in all_tasks().values():
        stream = draw(task, "training", held_out=False)
        drawn |= {next(stream).messages[-1]["content"] for _ in range(1500)}
    assert len(written & drawn) <= 40, written & drawn


def test_sums_and_differences_are_right() -> None:
    for name, sign in (("add", 1), ("subtract", -1)):
        for sample in held_out_samples(all_tasks()[name], 300):
            a, b, result = map(int, re.fullmatch(r"(\d+) [-+] (\d+) = (-?\d+)\.", sample.answer).groups())
            assert a + sign * b == result
            asked = re.findall(r"\d+", sample.messages[0]["content"])
            assert {str(a), str(b)} == set(asked), sample


def test_near_misses_are_declined_and_computable_requests_are_not() -> None:
    samples = held_out_samples(all_tasks()["near_miss"], 300)
    assert {s.answer for s in samples} == {REFUSAL}
    for sample in samples:
        assert not re.fullmatch(r"\d+ [-+x*] \d+( =)?", sample.messages[0]["content"]), sample


def test_lists_and_counts_are_longer_than_those_of_the_shipped_checkpoint() -> None:
    def largest(tasks, name):
        answers = [list(map(int, re.findall(r"\d+", s.answer))) for s in held_out_samples(tasks[name], 400)]
        return max(map(len, answers)), max(map(max, (a for a in answers if a)))

    assert largest(shipped.all_tasks(), "sort")[0] == 6
    assert largest(all_tasks(), "sort")[0] == 7
    assert largest(shipped.all_tasks(), "count_far")[1] <= 100 < largest(all_tasks(), "count_far")[1] <= 120


def test_a_story_may_choose_its_plot_but_must_keep_its_names() -> None:
    assert_stories_keep_names(all_tasks()["story"])


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


def test_plots_are_counted_among_right_stories_only(monkeypatch, tmp_path, capsys) -> None:
    """An engine whose every second seed gives a story with another name."""

    class Engine:
        def __init__(self, **settings: object) -> None: ...
        def __enter__(self) -> "Engine":
            return self

        def __exit__(self, *error: object) -> None: ...

        def generate(self, prompts, params):
            roles = next(roles for prompt, roles in plots.REQUESTS.items() if prompt == prompts[0][0]["content"])
            texts = [write(random.Random(p.seed), **roles) for p in params]
            return [SimpleNamespace(text=t if i % 2 else t.replace(" near ", " under ")) for i, t in enumerate(texts)]

    monkeypatch.setattr(runtime, "LLM", Engine)
    out = tmp_path / "plots.json"
    assert plots.main(["--seeds", "60", "--json", str(out)]) == 0
    rows = json.loads(out.read_text())["requests"]
    assert [row["prompt"] for row in rows] == list(plots.REQUESTS)
    assert all(row["right"] == sum(row["plots"].values()) == 30 and len(row["plots"]) == 7 for row in rows)
    assert "30 of 60 right" in capsys.readouterr().out


def test_the_offset_of_a_role_depends_on_no_plot_and_on_no_choice() -> None:
    """Else decoding is uncertain where to copy a requested name, and sampling prefers some plots."""
    encoder = ChatEncoder(make_tokenizer())

    def openings(**asked: str) -> list[list[int]]:
        drawn = (write(random.Random(seed), **asked) for seed in range(200))
        stories = {plot_of(text): text for text in drawn}
        assert len(stories) == 7
        return [encoder.text("\n".join(text.split("\n")[:2])) for text in stories.values()]

    for name in ("story", "story_any", "story_free"):
        for sample in held_out_samples(all_tasks()[name], 20):
            assert len({len(ids) for ids in openings(**sample.facts)}) == 1
    equal_roles = openings(he="Bruno", an="owl", pl="moon", th="spoon", time="night")
    assert [len(set(ids)) for ids in zip(*equal_roles, strict=True)].count(7) == 1
    assert sum(len(set(ids)) > 1 for ids in zip(*equal_roles, strict=True)) == 1


def test_a_wording_of_a_sum_has_one_order_of_operands() -> None:
    """A checker expects the operands in one order, which has to follow from the wording."""
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

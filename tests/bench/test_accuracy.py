"""Tests of `eval` and `sweep`: figures, limits, chosen prompts, and the values that an algorithm is swept at."""

import copy
import json
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from runtime import LLM, SamplingParams
from runtime.algorithms import base as algorithms
from runtime.algorithms.base import (
    ACCEPT,
    COMMON,
    STEPS,
    STEPS_KNOB,
    THRESHOLD_KNOB,
    UnmaskingAlgorithm,
    algorithm_keys,
    get_algorithm,
    register_algorithm,
)
from runtime.bench import __main__ as bench
from runtime.bench import accuracy, sweep
from runtime.bench import eval as evaluation
from runtime.bench.accuracy import Result
from runtime.bench.held_out import read_tasks
from runtime.bench.sweep import Point, Sweep
from runtime.request.validation import check_declared

TASKS = read_tasks()
ANSWERS = {str(prompt.messages): prompt.answer for task in TASKS.values() for prompt in task.prompts}


class Oracle:
    """An LLM that answers every prompt correctly, with ten tokens and an EOS token, in three forwards.

    Args:
        spoil: Every answer with a number divisible by this is wrong. 0: none is.
    """

    info = SimpleNamespace(default_algorithm="threshold")

    def __init__(self, spoil: int = 0) -> None:
        self.spoil, self.asked, self.seen = spoil, [], []

    def generate(self, prompts, params):
        outs = []
        for messages in prompts:
            self.asked.append(messages)
            self.seen.append(params)
            wrong = self.spoil and len(self.asked) % self.spoil == 0
            text = ANSWERS[str(messages)] + "?" * wrong
            outs.append(SimpleNamespace(text=text, token_ids=[0] * 10, eos=True, nfe=3))
        return outs


@pytest.fixture
def engines(monkeypatch):
    """Returns the engines that `open_llm` has returned, by batch size."""
    made = {}
    for module in (evaluation, sweep):
        monkeypatch.setattr(module, "open_llm", lambda args, batch: nullcontext(made.setdefault(batch, Oracle())))
    return made


@pytest.fixture(scope="module")
def llm():
    with LLM(device="cpu") as llm:
        yield llm


@pytest.fixture
def figures(llm, monkeypatch, tmp_path):
    """Returns a function that runs `sweep` with the shared model, and returns the algorithms' figures of its JSON."""

    def run(line: str) -> list[dict]:
        file = tmp_path / "sweep.json"
        assert bench.main(["sweep", *line.split(), "--json", str(file)]) == 0
        return json.loads(file.read_text())["algorithms"]

    monkeypatch.setattr(sweep, "open_llm", lambda *_: nullcontext(llm))
    return run


def run(line: str, *paths) -> int:
    return bench.main([*line.split(), *map(str, paths)])


def test_eval_counts(engines, tmp_path) -> None:
    engines[8] = Oracle(spoil=4)
    file = tmp_path / "figures.json"
    assert run("eval --tasks add long_add --n 20 --batch 8 --mode balanced --json", file) == 0
    found = json.loads(file.read_text())
    assert [(t["count"], t["accuracy"]) for t in found["tasks"]] == [(20, 0.75), (20, 0.75)]
    assert found["pooled"] == {"accuracy": 0.75, "tokens_per_forward": pytest.approx(11 / 3)}
    assert engines[8].asked == [p.messages for name in ("add", "long_add") for p in TASKS[name].prompts[:20]]
    assert (engines[8].seen[0].decoding, engines[8].seen[0].temperature) == ({"mode": "balanced"}, 0)


@pytest.mark.parametrize(
    ("line", "kinds"), [("eval", {"short", "long"}), ("sweep --algorithm fixed --values 2", {"long"})]
)
def test_tasks_by_default(engines, llm, line, kinds) -> None:
    engines[32] = Oracle()
    engines[32].info = llm.info
    assert run(f"{line} --n 1") == 0
    expected = [task.prompts[0].messages for task in TASKS.values() if task.kind in kinds]
    assert engines[32].asked == expected


@pytest.mark.parametrize(
    ("limit", "status"),
    [
        ("--min-short 0.75", 0), ("--min-short 0.8", 1), ("--min-long 0.8", 0), ("--min-tokens-per-forward 3.6", 0),
        ("--min-tokens-per-forward 3.7", 1),
    ],
)  # fmt: skip
def test_eval_fails_below_a_limit(engines, limit, status) -> None:
    engines[32] = Oracle(spoil=4)
    assert run(f"eval --tasks add --n 20 {limit}") == status


def test_eval_compares_batches_and_shows_wrong_answers(engines, capsys) -> None:
    assert run("eval --tasks greet --n 20 --compare-batch --algorithm threshold") == 0
    assert engines[1].seen[0].decoding == {"mode": "quality", "algorithm": "threshold"}
    engines[1] = Oracle(spoil=5)
    assert run("eval --tasks greet --n 20 --compare-batch") == 1
    assert "4 answers depend on the batch" in capsys.readouterr().err
    engines[32] = Oracle(spoil=1)
    assert run("eval --tasks add --n 3 --show-wrong 2 --algorithm fixed") == 0
    assert capsys.readouterr().out.count("expected") == 2
    assert engines[32].seen[0].decoding == {"algorithm": "fixed"}  # has no modes


def test_another_file_of_prompts_is_read(engines, tmp_path) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_text('{"task":"mine","kind":"short","messages":[{"role":"user","content":"Why?"}],"answer":"So."}')
    ANSWERS[str(read_tasks(file)["mine"].prompts[0].messages)] = "So."
    assert run("eval --min-short 1 --prompts", file) == 0
    assert len(engines[32].asked) == 1


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("eval --n 0", "--n: must be at least 1"),
        ("sweep --n 0", "--n: must be at least 1"),
        ("eval --n 33", "--n: add has 32 prompts"),
        ("eval --prompts none.jsonl", "none.jsonl has no prompts"),
        ("eval --tasks poetry", "--tasks: poetry is not a demo task"),
        ("eval --n 1 --algorithm fixed --mode speed", "decoding.mode"),
        ("sweep --n 1 --values 0.5", "--values: belong to the field of one algorithm"),
        ("sweep --n 1 --algorithm threshold fixed --values 0.5", "--values: belong to the field of one algorithm"),
        ("sweep --n 1 --algorithm threshold --values 0.5 2", "--values: accept_threshold: 2 is out of range"),
        ("sweep --n 1 --algorithm fixed --values 0.5", "--values: steps: 0.5 is not an integer"),
        ("sweep --n 1 --algorithm edit dmax", "--algorithm: dmax is not an algorithm of this model; available: credit"),
    ],
)
def test_errors_are_one_sentence(line, message, llm, monkeypatch, capsys) -> None:
    for module in (evaluation, sweep):
        monkeypatch.setattr(module, "open_llm", lambda args, batch: nullcontext(llm))
    tool, *rest = line.split()
    assert bench.main([tool, "--tasks", "add", "--device", "cpu", *rest]) == 1
    (sentence,) = capsys.readouterr().err.splitlines()
    assert sentence.startswith(message)


def test_without_a_terminal_only_the_table_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("eval --device cpu --tasks add --n 1") == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed
    assert all(line.strip() for line in printed)


@pytest.mark.parametrize("key", algorithm_keys())
def test_every_algorithm_declares_valid_knob_values(key) -> None:
    speed_accuracy_knob = get_algorithm(key).speed_accuracy_knob
    for size in (4, 8, 32):
        values = speed_accuracy_knob.values_for(size)
        assert len(values) == len(set(values)) > 2
        assert all(check_declared("", value, speed_accuracy_knob.field) == value for value in values)


def test_knob_values_depend_on_the_served_block_size() -> None:
    assert STEPS_KNOB.values_for(8) == (8, 4, 2, 1)
    assert THRESHOLD_KNOB.values_for(8) == THRESHOLD_KNOB.values


@pytest.mark.matrix
def test_every_supported_algorithm_is_swept_and_faster_at_its_last_value(llm) -> None:
    """Checks that the values are ordered from accurate to fast."""
    walks = sweep.sweeps(llm.info, None, None)
    assert [walk.algorithm for walk in walks] == [algorithm.key for algorithm in llm.info.algorithms]
    assert len(walks) == len(set(algorithm_keys()) - {"dmax", "noise"})
    prompt = TASKS["story"].prompts[0].messages
    ends = [walk.decoding(value) for walk in walks for value in (walk.values[0], walk.values[-1])]
    params = [SamplingParams(max_tokens=32, temperature=0, decoding=decoding) for decoding in ends]
    steps = [output.nfe for output in llm.generate([prompt] * len(ends), params)]
    for walk, careful, fast in zip(walks, steps[::2], steps[1::2], strict=True):
        assert careful > fast, walk.algorithm


@pytest.mark.matrix
def test_figures_and_picture_of_fixed_and_local_leap(figures, tmp_path) -> None:
    picture = tmp_path / "algorithms.png"
    found = figures(f"--tasks add greet --n 1 --algorithm fixed local_leap fixed --plot {picture}")
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert [(each["algorithm"], each["field"]) for each in found] == [
        ("fixed", "steps"),
        ("local_leap", "local_leap.neighbor"),
    ]
    points = found[0]["points"]
    assert [point["value"] for point in points] == [32, 16, 8, 4, 2, 1]
    for point in points:
        assert point["tokens_per_forward"] == pytest.approx(
            sum(task["tokens"] for task in point["tasks"]) / sum(task["nfe"] for task in point["tasks"])
        )
    speeds = [point["tokens_per_forward"] for point in points]
    assert speeds == sorted(speeds)
    assert points[0]["accuracy"] == 1


def test_values_from_the_flag_for_sequential(figures, llm) -> None:
    (found,) = figures("--tasks add --n 1 --algorithm sequential --values 3 5")
    for point, steps in zip(found["points"], (3, 5), strict=True):
        params = SamplingParams(
            max_tokens=accuracy.MAX_TOKENS, temperature=0, decoding={"algorithm": "sequential", "steps": steps}
        )
        assert point["value"] == steps
        assert point["tasks"][0]["nfe"] == llm.generate([TASKS["add"].prompts[0].messages], params)[0].nfe


def test_an_algorithm_without_a_knob_is_one_point_at_its_defaults(figures, monkeypatch, capsys) -> None:
    monkeypatch.setattr(type(get_algorithm("fixed")), "speed_accuracy_knob", None)
    (found,) = figures("--tasks add --n 1 --algorithm fixed")
    assert (found["field"], [point["value"] for point in found["points"]]) == (None, [None])
    assert run("sweep --algorithm fixed --values 2") == 1
    assert "--values: fixed has no field that trades accuracy for speed" in capsys.readouterr().err


def test_a_knob_that_is_no_field_of_the_algorithm_is_refused(monkeypatch) -> None:
    monkeypatch.setattr(algorithms, "_ALGORITHMS", copy.copy(algorithms._ALGORITHMS))

    class Wrong(UnmaskingAlgorithm):
        key, fields, speed_accuracy_knob = "wrong", (ACCEPT, *COMMON), STEPS_KNOB

    with pytest.raises(ValueError, match="wrong: speed_accuracy_knob 'steps' is not one of its fields"):
        register_algorithm(Wrong)
    Wrong.fields = (STEPS, *COMMON)
    assert register_algorithm(Wrong) is Wrong


def test_a_knob_in_an_object_sets_its_entry() -> None:
    walk = Sweep("local_leap", "local_leap.anchor", (0.5,))
    assert walk.decoding(0.5) == {"algorithm": "local_leap", "local_leap": {"anchor": 0.5}}


def point(value: float, right: int, nfe: int) -> Point:
    return Point(value, [Result("a", "long", 10, right, 100, nfe), Result("b", "long", 10, 10, 100, 10)])


def test_curves_are_per_algorithm_or_per_task_if_there_is_one_algorithm() -> None:
    few = (Sweep("fixed", "steps", (4, 2)), [point(4, 8, 40), point(2, 5, 15)])
    bare = (Sweep("bare", None, (None,)), [Point(None, point(0, 9, 30).tasks)])
    assert [(c.name, c.points, c.labels) for c in sweep.curves([few, bare])] == [
        ("fixed: steps 4 to 2", [(4.0, 90.0), (8.0, 75.0)], ["", ""]),
        ("bare", [(5.0, 95.0)], [""]),
    ]
    assert [(c.name, c.points, c.labels) for c in sweep.curves([few])] == [
        ("all", [(4.0, 90.0), (8.0, 75.0)], ["4", "2"]),
        ("a", [(2.5, 80.0), (100 / 15, 50.0)], ["", ""]),
        ("b", [(10.0, 100.0), (10.0, 100.0)], ["", ""]),
    ]


@pytest.mark.parametrize("tool", ["eval", "sweep"])
def test_the_strategy_of_the_server_can_be_chosen(tmp_path, tool):
    few = ["--device", "cpu", "--tasks", "add", "--n", "1", "--json", str(tmp_path / "figures.json")]
    assert bench.main([tool, *few, "--decoding-strategy", "dmax", "--sampling-mode", "edit"]) == 0
    figures = json.loads((tmp_path / "figures.json").read_text())
    if tool == "sweep":
        assert [each["algorithm"] for each in figures["algorithms"]] == ["dmax"]
    else:
        assert figures["decoding"] == {}
    assert bench.main([tool, *few, "--decoding-strategy", "diffusion_gemma"]) == 1

"""Tests of `sweep`, which plots a curve for every unmasking algorithm that the served model supports."""

import copy
import json

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
from runtime.bench.accuracy import Result
from runtime.bench.sweep import Point, Sweep
from runtime.request.validation import check_declared
from training.demo.tasks import all_tasks, held_out_samples


@pytest.fixture(scope="module")
def llm():
    with LLM(device="cpu") as llm:
        yield llm


@pytest.fixture
def figures(llm, monkeypatch, tmp_path):
    """Returns a function that runs the tool with the shared model, and returns the algorithms' figures of its JSON."""

    class Recorder:
        info, generate = llm.info, llm.generate

        def __enter__(self):
            return self

        def __exit__(self, *_):
            return None

    def run(*arguments: str) -> list[dict]:
        file = tmp_path / "sweep.json"
        assert bench.main(["sweep", *arguments, "--json", str(file)]) == 0
        return json.loads(file.read_text())["algorithms"]

    monkeypatch.setattr(sweep, "open_llm", lambda *_: Recorder())
    return run


@pytest.mark.parametrize("key", algorithm_keys())
@pytest.mark.parametrize("size", [4, 8, 32])
def test_every_algorithm_declares_valid_knob_values(key, size) -> None:
    speed_accuracy_knob = get_algorithm(key).speed_accuracy_knob
    values = speed_accuracy_knob.values_for(size)
    assert len(values) == len(set(values)) > 2
    for value in values:
        assert check_declared("", value, speed_accuracy_knob.field) == value


def test_knob_values_depend_on_the_served_block_size() -> None:
    assert STEPS_KNOB.values_for(8) == (8, 4, 2, 1)
    assert THRESHOLD_KNOB.values_for(8) == THRESHOLD_KNOB.values


@pytest.mark.matrix
def test_every_supported_algorithm_is_swept_and_faster_at_its_last_value(llm) -> None:
    """Checks that the values are ordered from accurate to fast."""
    walks = sweep.sweeps(llm.info, None, None)
    assert [walk.algorithm for walk in walks] == [algorithm.key for algorithm in llm.info.algorithms]
    assert len(walks) == len(set(algorithm_keys()) - {"dmax", "noise"})
    prompt = held_out_samples(all_tasks()["story"], 1)[0].messages
    ends = [walk.decoding(value) for walk in walks for value in (walk.values[0], walk.values[-1])]
    params = [SamplingParams(max_tokens=32, temperature=0, decoding=decoding) for decoding in ends]
    steps = [output.nfe for output in llm.generate([prompt] * len(ends), params)]
    for walk, careful, fast in zip(walks, steps[::2], steps[1::2], strict=True):
        assert careful > fast, walk.algorithm


@pytest.mark.matrix
def test_figures_of_fixed_and_local_leap(figures) -> None:
    found = figures("--tasks", "add", "greet", "--n", "1", "--algorithm", "fixed", "local_leap", "fixed")
    assert [(rule["algorithm"], rule["field"]) for rule in found] == [
        ("fixed", "steps"),
        ("local_leap", "local_leap.neighbor"),
    ]
    constant_points = found[0]["points"]
    assert [point["value"] for point in constant_points] == [32, 16, 8, 4, 2, 1]
    for point in constant_points:
        assert point["tokens_per_forward"] == pytest.approx(
            sum(task["tokens"] for task in point["tasks"]) / sum(task["nfe"] for task in point["tasks"])
        )
    speeds = [point["tokens_per_forward"] for point in constant_points]
    assert speeds == sorted(speeds)
    assert constant_points[0]["accuracy"] == 1


def test_values_from_the_flag_for_sequential(figures, llm) -> None:
    (rule,) = figures("--tasks", "add", "--n", "1", "--algorithm", "sequential", "--values", "3", "5")
    (sample,) = held_out_samples(all_tasks()["add"], 1)
    for point, steps in zip(rule["points"], (3, 5), strict=True):
        params = SamplingParams(
            max_tokens=accuracy.MAX_TOKENS, temperature=0, decoding={"algorithm": "sequential", "steps": steps}
        )
        assert point["value"] == steps
        assert point["tasks"][0]["nfe"] == llm.generate([sample.messages], params)[0].nfe


def test_long_tasks_are_the_default(figures, monkeypatch) -> None:
    asked = []

    def run_tasks(_, tasks, *rest):
        asked.append([task.kind for task in tasks])
        return [Result(task.name, task.kind, 1, 1, 10, 5) for task in tasks]

    monkeypatch.setattr(sweep, "run_tasks", run_tasks)
    figures("--algorithm", "threshold", "--values", "0.5")
    assert [set(kinds) for kinds in asked] == [{"long"}]


def test_an_algorithm_without_a_knob_is_one_point_at_its_defaults(figures, llm, monkeypatch, capsys) -> None:
    monkeypatch.setattr(type(get_algorithm("fixed")), "speed_accuracy_knob", None)
    (rule,) = figures("--tasks", "add", "--n", "1", "--algorithm", "fixed")
    assert (rule["field"], [point["value"] for point in rule["points"]]) == (None, [None])
    assert Sweep("fixed", None, (None,)).decoding(None) == {"algorithm": "fixed"}
    assert bench.main(["sweep", "--algorithm", "fixed", "--values", "2"]) == 1
    assert (
        capsys.readouterr().err == "--values: fixed has no field that trades accuracy for speed; leave --values out\n"
    )


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


@pytest.mark.matrix
def test_the_picture_of_fixed_and_edit_is_drawn(figures, tmp_path) -> None:
    file = tmp_path / "rules.png"
    figures("--tasks", "add", "--n", "1", "--algorithm", "fixed", "edit", "--plot", str(file))
    assert file.read_bytes().startswith(b"\x89PNG")

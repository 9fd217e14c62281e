"""A complete run: the order of its steps, and how it continues after one that failed."""

import copy
import itertools
import json
import subprocess

import pytest

from runtime.demo import everyday
from training.demo import run

GOOD = {
    "tasks": [
        {"task": "add", "kind": "short", "accuracy": 0.98},
        {"task": "story", "kind": "long", "accuracy": 0.9},
    ],
    "pooled": {"accuracy": 0.97, "tokens_per_forward": 5.0},
}
FIGURES = {
    "people": {"tasks": [{"task": name, "accuracy": least} for name, least in run.BY_FILE.items()]},
    "balanced": GOOD | {"pooled": {"accuracy": 0.96, "tokens_per_forward": 5.0}},
    "plots": {"requests": [{"prompt": "Tell me a story.", "plots": dict.fromkeys("abcde", 1)}]},
}


@pytest.fixture
def steps(monkeypatch):
    """Replaces processes: each writes what its module would write. `steps.fail` names one that fails."""

    class Steps:
        fail = ""

        def __init__(self) -> None:
            self.calls: list[list[str]] = []

        def run(self, command, check):
            assert check
            module, *flags = command[2:]
            self.calls.append([module.removeprefix("training.demo."), *flags])
            values = dict(itertools.pairwise(flags))
            name = values["--json"].rpartition("/")[2] if "--json" in values else module.rpartition(".")[2]
            out = run.Path(values.get("--out", "."))
            if module.endswith("train"):
                out.mkdir(exist_ok=True)
                (out / "state.pt").touch()
            if name == self.fail:
                raise subprocess.CalledProcessError(1, command)
            if module.endswith("adapter"):
                out.mkdir()
                (out / "adapter_config.json").touch()
            if "--json" in values:
                run.Path(values["--json"]).write_text(json.dumps(FIGURES.get(run.Path(values["--json"]).stem, GOOD)))

    made = Steps()
    monkeypatch.setattr(run.subprocess, "run", made.run)
    return made


def test_every_mode_is_evaluated_after_the_training(steps, tmp_path) -> None:
    out = tmp_path / "demo"
    assert run.main(["--out", str(out), "--device", "cpu", "--peak", "0.5"]) == 0
    (train, *train_flags), (adapter, *_), *evaluations, (plots, *_) = steps.calls
    assert (train, adapter, plots) == ("train", "train_adapter", "plots")
    assert train_flags[train_flags.index("--peak") :][:2] == ["--peak", "0.5"]
    assert [call[0] for call in evaluations] == ["evaluate"] * len(run.EVALUATIONS)
    assert {path.stem for path in out.glob("*.json")} == {*run.EVALUATIONS, "plots"}
    assert set(everyday.TASKS) <= set(evaluations[0])
    steps.calls.clear()
    assert run.main(["--out", str(out), "--device", "cpu"]) == 0
    assert steps.calls == []


@pytest.mark.parametrize(("fail", "left"), [("train", len(run.EVALUATIONS) + 3), ("balanced.json", 7)])
def test_a_run_continues_with_the_step_that_failed(steps, tmp_path, fail, left) -> None:
    out = tmp_path / "demo"
    steps.fail = fail
    with pytest.raises(subprocess.CalledProcessError):
        run.main(["--out", str(out)])
    failed = steps.calls[-1]
    steps.fail = ""
    steps.calls.clear()
    assert run.main(["--out", str(out)]) == 0
    assert len(steps.calls) == left
    assert [flag for flag in steps.calls[0] if flag not in failed] == (["--resume"] if fail == "train" else [])


def test_an_unfinished_training_is_not_measured(steps, tmp_path, capsys) -> None:
    with pytest.raises(SystemExit):
        run.main(["--out", str(tmp_path), "--minutes", "3"])
    assert "--total-minutes" in capsys.readouterr().err
    assert steps.calls == []


def test_figures_at_the_bars_pass() -> None:
    assert run.missed_bars({name: FIGURES.get(name, GOOD) for name in (*run.EVALUATIONS, "plots")}) == []


@pytest.mark.parametrize(
    ("name", "path", "value"),
    [
        *((name, ("tasks", 0, "accuracy"), 0.979) for name in ("quality", "edit", "fp8", "int8", "int4")),
        ("quality", ("tasks", 1, "accuracy"), 0.899),
        ("people", ("tasks", 1, "accuracy"), 0.959),
        ("balanced", ("pooled", "accuracy"), 0.949),
        ("balanced", ("pooled", "tokens_per_forward"), 4.9),
        ("edit", ("pooled", "accuracy"), 0.969),
        ("plots", ("requests", 0, "plots"), {"a": 32}),
    ],
)
def test_a_missed_bar_is_named(name, path, value) -> None:
    measured = {each: copy.deepcopy(FIGURES.get(each, GOOD)) for each in (*run.EVALUATIONS, "plots")}
    *outer, last = path
    parent = measured[name]
    for key in outer:
        parent = parent[key]
    parent[last] = value
    (miss,) = run.missed_bars(measured)
    assert miss.startswith(f"{name}: ")


def test_a_run_that_misses_a_bar_fails(steps, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setitem(FIGURES, "plots", {"requests": [{"prompt": "Tell me a story.", "plots": {}}]})
    assert run.main(["--out", str(tmp_path)]) == 1
    assert "plots: 0 for 'Tell me a story.'" in capsys.readouterr().out

"""Tests of a complete run: the order of its steps, and resuming after a failed step."""

import copy
import itertools
import json
import subprocess
import threading

import pytest

from training.demo import everyday, run

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
    """Replaces the processes by stubs that write the files of their modules. `steps.fail` names one that fails.

    With `steps.pairs`, each step after the training waits until another one runs too.
    """

    class Steps:
        fail = ""

        def __init__(self) -> None:
            self.calls: list[list[str]] = []
            self.commands: list[list[str]] = []
            self.devices: list[str] = []
            self.pairs: threading.Barrier | None = None

        def run(self, command, check, env=None, stdout=None, stderr=None):
            assert check
            module, *flags = command[len(command) - command[::-1].index("-m") :]
            self.calls.append([module.removeprefix("training.demo."), *flags])
            self.commands.append(command)
            if stdout is not None:
                assert stderr == subprocess.STDOUT
                self.devices.append(env["CUDA_VISIBLE_DEVICES"])
                stdout.write(f"begin {module}\n")
                if self.pairs is not None:
                    self.pairs.wait(60)
                stdout.write(f"end {module}\n")
            values = dict(itertools.pairwise(flags))
            name = values["--json"].rpartition("/")[2] if "--json" in values else module.rpartition(".")[2]
            out = run.Path(values.get("--out", "."))
            if module.endswith("train"):
                out.mkdir(exist_ok=True)
                (out / "state.pt").touch()
            if name == self.fail:
                raise subprocess.CalledProcessError(1, command)
            if module.endswith("held_out"):
                out.touch()
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
    (train, *train_flags), (prompts, *_), (adapter, *_), *evaluations, (plots, *_) = steps.calls
    assert (train, prompts, adapter, plots) == ("train", "held_out", "train_adapter", "plots")
    assert train_flags[train_flags.index("--peak") :][:2] == ["--peak", "0.5"]
    assert [call[0] for call in evaluations] == ["runtime.bench"] * len(run.EVALUATIONS)
    assert {path.stem for path in out.glob("*.json")} == {*run.EVALUATIONS, "plots"}
    assert set(everyday.NAMES) <= set(evaluations[0])
    steps.calls.clear()
    assert run.main(["--out", str(out), "--device", "cpu"]) == 0
    assert steps.calls == []


@pytest.mark.parametrize(("fail", "left"), [("train", len(run.EVALUATIONS) + 4), ("balanced.json", 7)])
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


@pytest.mark.parametrize(("visible", "devices"), [(None, ["0", "1"]), ("4,6,7", ["4", "6"])])
def test_two_gpus_run_two_steps_at_a_time(steps, tmp_path, monkeypatch, capsys, visible, devices) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    steps.pairs = threading.Barrier(2)
    assert run.main(["--out", str(tmp_path), "--gpus", "2"]) == 0
    train, _, *others = steps.commands
    assert train[: train.index("training.demo.train")] == [run.sys.executable, *run.launcher(2)]
    assert "torch.distributed.run" in train
    assert len(others) == len(run.EVALUATIONS) + 2
    assert sorted(steps.devices) == sorted(devices * (len(others) // 2))
    texts = capsys.readouterr().out.splitlines()
    begins = [at for at, text in enumerate(texts) if text.startswith("begin ")]
    assert len(begins) == len(others)
    for at in begins:
        assert texts[at - 1].endswith(".log:")
        assert next(text for text in texts[at + 1 :] if text[0] != "+") == texts[at].replace("begin", "end")


def test_an_error_of_one_of_several_steps_ends_the_run(steps, tmp_path, capsys) -> None:
    steps.fail = "people.json"
    with pytest.raises(subprocess.CalledProcessError):
        run.main(["--out", str(tmp_path), "--gpus", "2"])
    assert f"{tmp_path / 'people.log'}:\nbegin runtime.bench" in capsys.readouterr().out
    assert not (tmp_path / "people.json").exists()
    ended = {path.stem for path in tmp_path.glob("*.json")}
    steps.fail = ""
    steps.calls.clear()
    assert run.main(["--out", str(tmp_path), "--gpus", "2"]) == 0
    again = [run.Path(call[call.index("--json") + 1]).stem for call in steps.calls if "--json" in call]
    assert sorted(again) == sorted({*run.EVALUATIONS, "plots"} - ended)


@pytest.mark.parametrize(
    ("flags", "message"),
    [("--gpus 5", "--gpus: 5 must divide the 48 rows"), ("--minutes 3", "--total-minutes")],
)
def test_wrong_flags_are_refused(steps, tmp_path, capsys, flags, message) -> None:
    with pytest.raises(SystemExit):
        run.main(["--out", str(tmp_path), *flags.split()])
    assert message in capsys.readouterr().err
    assert steps.calls == []


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
    assert run.missed_bars(measured) == []
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

"""A complete run: the order of its steps, and how it continues after one that failed."""

import itertools
import subprocess

import pytest

from runtime.demo import everyday
from training.demo import run


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
                run.Path(values["--json"]).touch()

    made = Steps()
    monkeypatch.setattr(run.subprocess, "run", made.run)
    return made


def test_every_mode_is_evaluated_after_the_training(steps, tmp_path) -> None:
    out = tmp_path / "demo"
    assert run.main(["--out", str(out), "--device", "cpu", "--peak", "0.5"]) == 0
    (train, *train_flags), (adapter, *_), *evaluations = steps.calls
    assert (train, adapter) == ("train", "train_adapter")
    assert train_flags[train_flags.index("--peak") :][:2] == ["--peak", "0.5"]
    assert [call[0] for call in evaluations] == ["evaluate"] * len(run.EVALUATIONS)
    assert {path.stem for path in out.glob("*.json")} == set(run.EVALUATIONS)
    assert set(everyday.TASKS) <= set(evaluations[0])
    steps.calls.clear()
    assert run.main(["--out", str(out), "--device", "cpu"]) == 0
    assert steps.calls == []


@pytest.mark.parametrize(("fail", "left"), [("train", len(run.EVALUATIONS) + 2), ("balanced.json", 6)])
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

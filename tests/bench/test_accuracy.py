"""Tests of `eval`: it counts right answers, tokens and forwards, checks minimum scores, and compares batch sizes."""

import json
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from runtime import LLM
from runtime.bench import __main__ as bench
from runtime.bench import accuracy, sweep
from runtime.bench import eval as evaluation
from training.demo.tasks import all_tasks, held_out_samples

ANSWERS = {
    tuple(m["content"] for m in s.messages): s.answer
    for name in ("add", "greet", "long_add")
    for s in held_out_samples(all_tasks()[name], 20)
}


class Oracle:
    """An LLM that answers every prompt correctly, with ten tokens and an EOS token, in three forwards.

    Args:
        spoil: Every answer with a number divisible by this is wrong. 0: none is.
    """

    def __init__(self, spoil: int = 0) -> None:
        self.spoil, self.asked, self.seen = spoil, 0, []

    def generate(self, prompts, params):
        self.seen.append(params)
        outs = []
        for messages in prompts:
            self.asked += 1
            text = ANSWERS[tuple(m["content"] for m in messages)]
            if self.spoil and self.asked % self.spoil == 0:
                text += "?"
            outs.append(SimpleNamespace(text=text, token_ids=[0] * 10, eos=True, nfe=3))
        return outs

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None


@pytest.fixture
def engines(monkeypatch):
    """Returns the engines that `open_llm` has returned, by batch size."""
    made = {}

    def open_llm(args, batch):
        made.setdefault(batch, Oracle())
        return made[batch]

    for module in (accuracy, evaluation):
        monkeypatch.setattr(module, "open_llm", open_llm)
    return made


@pytest.fixture(scope="module")
def llm():
    with LLM(device="cpu") as llm:
        yield llm


def run(*arguments) -> int:
    return bench.main(list(arguments))


def test_eval_counts(engines, tmp_path) -> None:
    engines[8] = Oracle(spoil=4)
    file = tmp_path / "figures.json"
    call = [
        "eval",
        "--tasks",
        "add",
        "long_add",
        "--n",
        "20",
        "--batch",
        "8",
        "--json",
        str(file),
        "--mode",
        "balanced",
    ]
    assert run(*call) == 0
    figures = json.loads(file.read_text())
    assert [t["accuracy"] for t in figures["tasks"]] == [0.75, 0.75]
    assert figures["pooled"] == {"accuracy": 0.75, "tokens_per_forward": pytest.approx(11 / 3)}
    assert engines[8].seen[0].decoding == {"mode": "balanced"}
    assert engines[8].seen[0].temperature == 0


@pytest.mark.parametrize(
    ("bars", "status"),
    [
        (["--min-short", "0.75"], 0),
        (["--min-short", "0.8"], 1),
        (["--min-long", "0.8"], 0),
        (["--min-tokens-per-forward", "3.6"], 0),
        (["--min-tokens-per-forward", "3.7"], 1),
    ],
)
def test_eval_fails_below_a_bar(engines, bars, status) -> None:
    engines[32] = Oracle(spoil=4)
    assert run("eval", "--tasks", "add", "--n", "20", *bars) == status


def test_eval_compares_batches(engines, capsys) -> None:
    assert run("eval", "--tasks", "greet", "--n", "20", "--compare-batch", "--algorithm", "threshold") == 0
    assert engines[1].seen[0].decoding == {"mode": "quality", "algorithm": "threshold"}
    engines[1] = Oracle(spoil=5)
    assert run("eval", "--tasks", "greet", "--n", "20", "--compare-batch") == 1
    assert "4 answers depend on the batch" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "arguments"),
    [
        ("eval --n 0", "--n"),
        ("sweep --n 0", "--n"),
        ("eval --n 1 --algorithm fixed --mode speed", "decoding.mode"),
        ("sweep --n 1 --values 0.5", "--values: belong to the field of one algorithm"),
        ("sweep --n 1 --algorithm threshold fixed --values 0.5", "--values: belong to the field of one algorithm"),
        ("sweep --n 1 --algorithm threshold --values 0.5 2", "--values: accept_threshold: 2 is out of range"),
        ("sweep --n 1 --algorithm fixed --values 0.5", "--values: steps: 0.5 is not an integer"),
        (
            "sweep --n 1 --algorithm edit dmax",
            "--algorithm: dmax is not an algorithm of this model; available: credit",
        ),
    ],
)
def test_errors_of_the_engine_are_one_sentence(line, arguments, llm, monkeypatch, capsys) -> None:
    for module in (evaluation, sweep):
        monkeypatch.setattr(module, "open_llm", lambda args, batch: nullcontext(llm))
    tool, *rest = line.split()
    assert bench.main([tool, "--tasks", "add", "--device", "cpu", *rest]) == 1
    (sentence,) = capsys.readouterr().err.splitlines()
    assert sentence.startswith(arguments)


def test_eval_sets_no_mode_for_an_algorithm_without_modes(engines) -> None:
    assert bench.main(["eval", "--tasks", "add", "--n", "1", "--algorithm", "fixed"]) == 0
    assert engines[32].seen[0].decoding == {"algorithm": "fixed"}


def test_unknown_tasks_and_tools_are_refused(engines, capsys) -> None:
    assert run("eval", "--tasks", "poetry") == 1
    assert "poetry is not a demo task" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        run("nothing")


def test_without_a_terminal_only_the_table_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["eval", "--device", "cpu", "--tasks", "add", "--n", "1"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed
    assert all(line.strip() for line in printed)

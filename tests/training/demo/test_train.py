"""Tests of the training script at a toy size: it learns, stops and resumes, and writes a loadable checkpoint."""

import dataclasses
import itertools
import json
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from tokenizers import Tokenizer

from tests.oracle.model import OracleModel
from tests.training.demo.test_model import TINY
from training.demo import train as script
from training.demo.data import Noiser, batches
from training.demo.data_parallel import DataParallel
from training.demo.decode import decode
from training.demo.export import load_checkpoint
from training.demo.feed import Feed, local_batches
from training.demo.model import DemoModel
from training.demo.optim import cosine
from training.demo.presets import PRESETS
from training.demo.tokenizer import ChatEncoder

TOY = dataclasses.replace(
    PRESETS["cpu"], shape=TINY, tasks={"greet": 1.0, "add": 1.0}, rows=4, row_length=128, eval_prompts=2,
    total_minutes=0.05, eval_every_minutes=100.0,
)  # fmt: skip
STEP_SECONDS = 0.03  # duration of a step, which reads the clock twice


def use_toy(patch: pytest.MonkeyPatch) -> None:
    """Makes `toy` the only preset, with a clock that depends only on the steps."""
    ticks = itertools.count()
    patch.setattr(script, "PRESETS", {"toy": TOY})
    patch.setattr(script, "time", SimpleNamespace(perf_counter=lambda: next(ticks) * STEP_SECONDS / 2))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Returns the directory of a training that was interrupted and resumed."""
    out = tmp_path_factory.mktemp("training")
    with pytest.MonkeyPatch.context() as patch:
        use_toy(patch)
        call = ["--preset", "toy", "--out", str(out), "--device", "cpu"]
        assert script.main([*call, "--minutes", "0.02"]) == 0
        assert script.main(call) == 2  # refused: the directory has a training
        assert script.main([*call, "--resume"]) == 0
    return out


@pytest.mark.matrix
def test_training_learns_resumes_and_leaves_a_checkpoint(trained) -> None:
    first, last = [json.loads(line) for line in (trained / "log.jsonl").read_text().splitlines()]
    assert last["step"] > first["step"]
    assert last["minutes"] == pytest.approx(0.05, abs=STEP_SECONDS / 60)
    assert last["loss"] < first["loss"] < 7.5
    assert set(last["tasks"]) == {"greet", "add"}
    model = OracleModel.load(trained / "checkpoint")
    encoder = ChatEncoder(Tokenizer.from_file(str(trained / "checkpoint" / "tokenizer.json")))
    logits = model.logits(encoder.prompt([{"role": "user", "content": "Hello."}]))
    assert logits.shape[-1] == TINY.vocab_size
    assert torch.isfinite(logits).all()


def test_a_training_may_be_exported_before_its_end(tmp_path, monkeypatch) -> None:
    use_toy(monkeypatch)
    call = ["--preset", "toy", "--out", str(tmp_path), "--device", "cpu", "--total-minutes", "0.01"]
    assert script.main([*call, "--eval-prompts", "0", "--eval-minutes", "0.004"]) == 0
    early, *_, last = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert early["minutes"] < 0.006
    assert early["tasks"] == {}
    assert last["minutes"] == pytest.approx(0.01, abs=STEP_SECONDS / 60)
    assert torch.load(tmp_path / "state.pt", weights_only=True)["progress"][0] == last["step"]


def test_a_training_may_begin_with_a_checkpoint(trained, tmp_path) -> None:
    trainer = script.Trainer(TOY, tmp_path, 0, DataParallel(torch.device("cpu")))
    trainer.begin_with(trained / "checkpoint")
    shipped = load_checkpoint(trained / "checkpoint").state_dict()
    for weights in (trainer.model.state_dict(), trainer.average.weights):
        assert all(torch.equal(weights[name], value) for name, value in shipped.items())


def test_a_training_of_another_shape_is_not_resumed(trained) -> None:
    other = dataclasses.replace(TOY, shape=dataclasses.replace(TINY, num_hidden_layers=2))
    with pytest.raises(SystemExit, match="another shape"):
        script.Trainer(other, trained, 0, DataParallel(torch.device("cpu"))).resume()


def test_worker_batches_are_in_turn_and_depend_on_the_seed_alone(trained) -> None:
    file = trained / "tokenizer" / "tokenizer.json"
    feed = Feed(partial(local_batches, TOY, file), 2, "7")
    try:
        seen = [next(feed).ids for _ in range(4)]
    finally:
        feed.close()
    first, second = (local_batches(TOY, file, f"7/{worker}") for worker in range(2))
    expected = [next(stream).ids for stream in (first, second, first, second)]
    assert all((a == b).all() for a, b in zip(seen, expected, strict=True))
    assert not (seen[0] == seen[1]).all()


@pytest.mark.matrix
def test_a_dead_worker_ends_the_training(tmp_path) -> None:
    feed = Feed(partial(local_batches, TOY, tmp_path / "no tokenizer here.json"), 1, "7")
    try:
        with pytest.raises(RuntimeError, match="worker 0 ended"):
            next(feed)
    finally:
        feed.close()


def test_a_document_that_no_row_holds_is_left_out_and_many_end_the_training(trained) -> None:
    encoder = ChatEncoder(Tokenizer.from_file(str(trained / "tokenizer" / "tokenizer.json")))
    short, long = ([5] * 20, [6] * 11 + [encoder.eos]), ([5] * 20, [7] * 200)

    def made(documents):
        return batches(iter(documents), Noiser(encoder, TOY.noise, 0), 2, 128, encoder.eos)

    ids = next(made([long, short] * 200)).ids
    assert ids.shape == (2, 128)
    assert (ids == 6).any()
    assert not (ids == 7).any()
    with pytest.raises(ValueError, match="need more than a row's 128: raise row_length"):
        next(made([short] + [long] * 40))


def test_decoding_fills_blocks_and_stops(trained) -> None:
    encoder = ChatEncoder(Tokenizer.from_file(str(trained / "tokenizer" / "tokenizer.json")))
    torch.manual_seed(0)
    model = DemoModel(TINY).eval()
    prompts = [encoder.prompt([{"role": "user", "content": text}]) for text in ("Hello.", "Solve: 12 + 30.", "9 x 9")]
    answers, steps = decode(model, prompts, encoder, max_new=20)
    alone = [decode(model, [p], encoder, max_new=20) for p in prompts]
    assert answers == [a[0] for a, _ in alone]
    assert steps == [s[0] for _, s in alone]
    for answer, count in zip(answers, steps, strict=True):
        ends = [t in (encoder.eos, encoder.turn_end) for t in answer]
        assert not any(ends[:-1])
        assert encoder.mask not in answer
        assert 1 <= count <= 40
    quick = decode(model, prompts, encoder, threshold=0.0, max_new=20)[1]
    assert max(quick) <= 4  # all tokens pass the threshold: one step per block


def test_the_learning_rate_rises_and_falls() -> None:
    factors = [cosine(i / 100) for i in range(101)]
    assert max(factors) == pytest.approx(1.0, abs=0.01)
    assert factors[0] < 0.1
    assert factors[-1] < 0.02
    assert factors[10:] == sorted(factors[10:], reverse=True)

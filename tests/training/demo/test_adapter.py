"""Tests of the shipped adapter `roman`, and of training such adapters."""

import itertools
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

from runtime import LLM, SamplingParams, demo
from runtime.errors import ConfigError
from runtime.lora.adapter_checkpoint import resolve_adapter
from tests.training.demo.test_model import TINY, block_causal, make
from training.demo import train_adapter
from training.demo.export import export, load_checkpoint
from training.demo.lora import TARGETS, add_adapter, export_adapter
from training.demo.model import DemoModel
from training.demo.tokenizer import make_tokenizer

PROMISED = {"multiply": 1, "compare": 1, "count": 5, "sort": 5}  # maximum wrong answers of COUNT, as in its card
COUNT = 16
SETTINGS = SamplingParams(max_tokens=256, temperature=0.0, decoding={"mode": "quality"})


def test_numbers_become_numerals() -> None:
    assert train_adapter.in_romans("12 + 30 = 42.") == "XII + XXX = XLII."
    assert train_adapter.in_romans("7 - 7 = 0.") == "VII - VII = 0."
    assert train_adapter.in_romans("k-i-t-e.") == "k-i-t-e."
    assert train_adapter.in_romans("999 x 9 = 8991.") is None


def test_a_fresh_adapter_changes_nothing_and_is_all_that_learns() -> None:
    model, ids = make(), torch.randint(0, 1000, (1, 16))
    call = ids, torch.arange(16).unsqueeze(0), block_causal(16, 8)
    before = model(*call)
    pairs = add_adapter(model, rank=2, alpha=4)
    torch.testing.assert_close(model(*call), before)
    assert {n for n, p in model.named_parameters() if p.requires_grad} == {
        f"{n}.{e}" for n in pairs for e in ("up", "down")
    }
    assert {n.rpartition(".")[2] for n in pairs} == set(TARGETS)


def test_a_loaded_checkpoint_equals_the_exported_one_up_to_rounding(tmp_path) -> None:
    model = make()
    export(model.state_dict(), TINY, make_tokenizer(), tmp_path)
    again = load_checkpoint(tmp_path)
    assert isinstance(again, DemoModel)
    for name, value in again.state_dict().items():
        torch.testing.assert_close(value, model.state_dict()[name], rtol=1e-2, atol=1e-2)


def test_the_exported_adapter_equals_that_of_the_training(tmp_path) -> None:
    """Compares the training model's adapter layers with merged weights, for one trained pair per layer."""
    base, adapter = tmp_path / "base", tmp_path / "adapter"
    export(make().state_dict(), TINY, make_tokenizer(), base)
    model = load_checkpoint(base).eval()
    pairs = add_adapter(model, rank=2, alpha=4)
    for pair in pairs.values():
        pair.up.data.normal_(0, 0.05)
        pair.down.data, pair.up.data = pair.down.data.bfloat16().float(), pair.up.data.bfloat16().float()
    export_adapter(pairs, 2, 4, adapter)
    config = json.loads((adapter / "adapter_config.json").read_text())
    tensors = load_file(adapter / "adapter_model.safetensors")
    assert (config["r"], config["lora_alpha"], len(tensors)) == (2, 4, 2 * len(pairs))
    merged = load_checkpoint(base).eval()
    for name in pairs:
        down, up = (tensors[f"base_model.model.{name}.lora_{e}.weight"].float() for e in "AB")
        merged.get_parameter(f"{name}.weight").data += config["lora_alpha"] / config["r"] * up @ down
    ids = torch.randint(0, 1000, (1, 16))
    call = ids, torch.arange(16).unsqueeze(0), block_causal(16, 8)
    torch.testing.assert_close(model(*call), merged(*call), rtol=1e-4, atol=1e-4)


@pytest.mark.matrix
def test_the_script_trains_an_adapter_that_can_be_served(tmp_path, monkeypatch) -> None:
    ticks = itertools.count()
    monkeypatch.setattr(train_adapter, "time", SimpleNamespace(perf_counter=lambda: next(ticks) / 10))
    base, adapter = tmp_path / "base", tmp_path / "adapter"
    export(make().state_dict(), TINY, make_tokenizer(), base)
    flags = "--seconds 1 --rows 1 --prompts 1 --workers 0 --device cpu"
    assert train_adapter.main(["--model", str(base), "--out", str(adapter), *flags.split()]) == 0
    with LLM(str(base), device="cpu", max_num_reqs=2, lora={"roman": str(adapter)}) as llm:
        assert llm.generate(["Hello"], SamplingParams(max_tokens=8), adapter="roman")[0].token_ids is not None


@pytest.fixture(scope="module")
def llm():
    with LLM(device="cpu", max_num_reqs=48, lora={"roman": "demo://roman"}) as model:
        yield model


def test_the_shipped_adapter_answers_in_roman_numerals_next_to_the_base(llm) -> None:
    asked = "What is 7 x 8?", "What is 7 x 8?", "Which is larger, 48 or 84?", "Spell lamp."
    chats = [[{"role": "user", "content": text}] for text in asked]
    texts = [o.text for o in llm.generate(chats, SETTINGS, adapter=[None, *["roman"] * 3])]
    assert texts == ["7 x 8 = 56.", "VII x VIII = LVI.", "LXXXIV is larger than XLVIII.", "l-a-m-p."]


@pytest.mark.parametrize("name", PROMISED)
def test_the_shipped_adapter_has_the_accuracy_of_its_card(llm, name) -> None:
    stream = (s for s in train_adapter.samples("test", held_out=True) if s.task == name)
    samples = [next(stream) for _ in range(COUNT)]
    outs = llm.generate([s.messages for s in samples], SETTINGS, adapter="roman")
    wrong = [(s.answer, o.text) for s, o in zip(samples, outs, strict=True) if o.text != s.answer]
    assert len(wrong) <= PROMISED[name], wrong


def test_the_shipped_adapter_is_small_and_found_by_name() -> None:
    path = resolve_adapter("demo://roman")
    assert sum(file.stat().st_size for file in path.iterdir()) <= 1e6
    assert path.parent == Path(demo.__file__).parent / "adapters"


@pytest.mark.parametrize("uri", ["demo://greek", "demo://", "demo://../checkpoint"])
def test_an_unknown_adapter_is_refused_with_the_available_ones(uri) -> None:
    with pytest.raises(ConfigError, match=r"does not ship with this copy of unmask; it has 'roman'$"):
        resolve_adapter(uri)

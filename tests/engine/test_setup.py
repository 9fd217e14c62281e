"""Tests of the construction of an engine from flags and from the declarations of a model family."""

import copy
import json
import logging
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runtime import LLM, SamplingParams
from runtime.config import EngineConfig
from runtime.engine import setup
from runtime.engine.setup import load_engine
from runtime.errors import ConfigError
from runtime.kernels.compiler import KernelCompiler
from runtime.models import base
from runtime.models.base import Model
from runtime.models.llada2 import LLADA2
from runtime.request.resolve import RequestContext, resolve
from runtime.server.metrics import Metrics, RequestMetrics
from runtime.strategies.registry import strategies
from runtime.weights.special_tokens import TokenIds
from tests.golden import GOLDEN
from tests.models.tiny import write_random
from tests.tokenizer.conftest import byte_level, save


def test_the_loaded_fraction_only_grows() -> None:
    progress: list[tuple[str, int, int]] = []
    load_engine(EngineConfig(device="cpu"), lambda phase, done, total: progress.append((phase, done, total)))
    fractions = [done / total for _, done, total in progress]
    assert fractions == sorted(fractions)
    assert [phase for phase, _, _ in progress][-2:] == ["weights", "warmup"]
    assert fractions[-1] == 1


def test_the_format_of_the_weights_is_reported() -> None:
    load, progress = EngineConfig(device="cpu", quantization="fp8"), []
    engine = load_engine(load, lambda phase, done, total: progress.append(total))
    unquantized = load_engine(EngineConfig(device="cpu"), lambda phase, done, total: progress.append(total))
    assert (engine.info.quantization, unquantized.info.quantization) == ("fp8", None)
    assert progress[0] < 0.4 * progress[-1], "the fp8 weights have too many bytes"
    for info, name in ((engine.info, "fp8"), (unquantized.info, "none")):
        metrics = Metrics("m", RequestMetrics())
        metrics.on_loaded(info, 1.0)
        assert f'quantization="{name}"' in metrics.text().decode()
    with pytest.raises(ConfigError, match="--quantization fp8: cannot be combined with --dtype float64"):
        LLM(device="cpu", dtype="float64", quantization="fp8")


@pytest.mark.parametrize("flags", [{}, {"quantization": "fp8"}])  # on a CPU
def test_an_lm_head_that_no_kernel_multiplies_in_eight_bits_is_refused(flags: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="--quantized-lm-head needs fp8 weights on a GPU"):
        load_engine(EngineConfig.from_flags(device="cpu", quantized_lm_head=True, **flags))


def test_the_compiler_starts_before_all_reads_and_ends_if_the_model_cannot_be_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    events: list[str] = []
    resolve_token_ids = setup.resolve_token_ids

    def resolve(*arguments: Any, **options: Any) -> TokenIds:
        events.append("tokenizer")
        return resolve_token_ids(*arguments, **options)

    monkeypatch.setattr(setup, "resolve_token_ids", resolve)
    monkeypatch.setattr(KernelCompiler, "start", lambda self: events.append("start"))
    monkeypatch.setattr(KernelCompiler, "close", lambda self: events.append("close"))

    def load(*_: object) -> Model:
        events.append("load")
        raise ConfigError("a tensor is missing")

    with pytest.raises(ConfigError, match="a tensor is missing"):
        load_engine(EngineConfig(device="cpu"), load=load)
    assert events == ["start", "tokenizer", "load", "close"]


def test_the_family_declares_length_block_size_and_first_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "_FAMILIES", copy.copy(base._FAMILIES))
    facts = {"max_model_len": 96, "block_size": 16, "bos_id": 5}
    base.register_family(
        replace(LLADA2, key="twin", aliases=(), facts=lambda arch: replace(LLADA2.facts(arch), **facts))
    )
    with LLM(model_name="twin", device="cpu") as llm:
        assert (llm.info.max_model_len, llm.info.block_size, llm.info.bos_token_id) == (96, 16, 5)
        assert llm.tokenizer is not None
        ids = llm.tokenizer.encode("a + b")
        greedy = SamplingParams(temperature=0.0)
        text, from_ids = llm.generate(["a + b", ids], greedy)
        assert text.usage["prompt_tokens"] == from_ids.usage["prompt_tokens"] + 1
        assert text.token_ids == llm.generate([[5, *ids]], greedy)[0].token_ids
    with LLM(model_name="twin", device="cpu", max_model_len=160, block_size=8) as llm:
        assert (llm.info.max_model_len, llm.info.block_size) == (160, 8)


def test_text_for_dream_begins_with_the_bos_token_of_the_tokenizer(tmp_path: Path) -> None:
    """The bos_token_id of the published config.json is another token. A chat has only what its template writes."""
    write_random("dream", tmp_path, vocab_size=330, bos_token_id=3, mask_token_id=329)
    save(byte_level(), tmp_path, bos_token="<role>")
    with LLM(str(tmp_path), device="cpu") as llm:
        assert llm.tokenizer is not None
        bos = llm.tokenizer.token_id("<role>")
        assert llm.info.bos_token_id == bos != 3
        greedy = SamplingParams(temperature=0.0, max_tokens=6)
        text, ids = llm.generate(["Solve", [bos, *llm.tokenizer.encode("Solve")]], greedy)
        assert text.token_ids == ids.token_ids
        messages = [{"role": "user", "content": "Solve"}]
        (chat,) = llm.generate([messages], greedy)
        assert chat.usage["prompt_tokens"] == len(llm.tokenizer.encode_chat(messages))


def test_a_family_whose_strategies_are_not_there_is_refused_with_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "_FAMILIES", copy.copy(base._FAMILIES))
    base.register_family(replace(LLADA2, key="twin", aliases=(), strategies=("ahead", "aside")))
    for flags in ({}, {"decoding_strategy": "ahead"}, {"decoding_strategy": "multi_bd"}):
        with pytest.raises(ConfigError) as error:
            load_engine(EngineConfig(model_name="twin", device="cpu", **flags))
        assert str(error.value) == (
            "the model's family needs the decoding strategy ahead or aside, which is not registered; registered: "
            + ", ".join(strategies())
        )


def test_the_block_size_must_be_a_multiple_of_the_familys_block_multiple(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "_FAMILIES", copy.copy(base._FAMILIES))
    facts = {"block_size": 8, "block_multiple": 8}
    base.register_family(
        replace(LLADA2, key="twin", aliases=(), facts=lambda arch: replace(LLADA2.facts(arch), **facts))
    )
    assert load_engine(EngineConfig(model_name="twin", device="cpu", block_size=16)).info.block_size == 16
    with pytest.raises(ConfigError, match="--block-size 12 is no multiple of 8, the positions that this checkpoint"):
        load_engine(EngineConfig(model_name="twin", device="cpu", block_size=12, page_size=12))


def test_sampling_defaults_are_those_of_generation_config(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "llada2_tiny", tmp_path / "tiny")

    def sampling(**says: object) -> tuple[float, float, int, float]:
        (tmp_path / "tiny" / "generation_config.json").write_text(json.dumps(says))
        with LLM(str(tmp_path / "tiny"), device="cpu", skip_tokenizer=True) as llm:
            info = llm.info
        spec = resolve(SamplingParams(), [40, 41], info, RequestContext("id"))
        assert (spec.temperature, spec.top_p, spec.top_k, spec.min_p) == (
            info.temperature, info.top_p, info.top_k, info.min_p,
        )  # fmt: skip
        return info.temperature, info.top_p, info.top_k, info.min_p

    assert sampling(temperature=0.6, top_k=20, top_p=0.95, min_p=0.05) == (0.6, 0.95, 20, 0.05)
    assert sampling(do_sample=False, temperature=0.6, top_k=20, top_p=0.95, min_p=0.05) == (0.0, 1.0, 0, 0.0)
    assert sampling() == (0.0, 1.0, 0, 0.0)
    assert sampling(top_p=0, min_p=None) == (0.0, 0.0, 0, 0.0)
    with pytest.raises(ConfigError, match="min_p is 2, not a number from 0 to 1"):
        sampling(min_p=2)
    with pytest.raises(ConfigError, match="top_k is -5"):
        sampling(top_k=-5)
    with pytest.raises(ConfigError, match=r"top_k is 2\.5, not a whole number"):
        sampling(top_k=2.5)


def test_the_values_in_use_are_logged_at_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "LLaDA2.1-mini"
    shutil.copytree(GOLDEN / "llada2_tiny", path)
    (path / "generation_config.json").write_text(json.dumps({"temperature": 0.6, "top_k": 20}))
    with caplog.at_level(logging.INFO), LLM(str(path), device="cpu", skip_tokenizer=True, eos_token_ids=[3, 5]) as llm:
        info = llm.info
    first = next(n for n, line in enumerate(caplog.messages) if line.startswith("block size"))
    size, length, tokens, sampling, decoding = caplog.messages[first : first + 5]
    assert size == f"block size {info.block_size}, from config.json"
    assert length == "max_model_len 512, the checkpoint's own"
    assert tokens == f"mask {info.mask_token_id}; EOS 3, 5"
    assert sampling == "default sampling: temperature 0.6, top_p 1, top_k 20, min_p 0"
    assert decoding.startswith("default decoding (with the published settings of LLaDA2.1-mini): algorithm edit, ")
    assert "accept_threshold 0.7, edit_threshold 0.5" in decoding


@pytest.mark.parametrize(("penalty", "warned"), [(1.05, True), (None, False), (1, False), (1.0, False)])
def test_a_repetition_penalty_of_generation_config_is_not_applied_with_a_warning(
    penalty: float | None, warned: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copytree(GOLDEN / "llada2_tiny", tmp_path / "tiny")
    (tmp_path / "tiny" / "generation_config.json").write_text(json.dumps({"repetition_penalty": penalty}))
    LLM(str(tmp_path / "tiny"), device="cpu", skip_tokenizer=True).close()
    expected = ["generation_config.json: repetition_penalty 1.05 is not applied; set it in requests"] if warned else []
    assert [line for line in caplog.messages if "generation_config" in line] == expected

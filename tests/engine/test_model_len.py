"""Tests of the default of --max-model-len: the checkpoint's own length, or the longest request that fits."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
import torch

from runtime import LLM
from runtime.bench.model_shapes import architecture
from runtime.config import EngineConfig
from runtime.distributed.process_group import SINGLE_RANK
from runtime.engine import setup
from runtime.engine.fit import DeviceMemory
from runtime.engine.model_plan import ModelPlan, plan_model
from runtime.engine.setup import load_engine
from runtime.errors import ConfigError
from runtime.request.engine_messages import RequestSpec
from runtime.scheduling.strategy import LENGTH_STEP, DecodingContext, longest_request, max_request_pages
from runtime.server.engine_client.client import LocalEngineClient
from runtime.strategies.registry import make_strategy, strategies
from runtime.weights.checkpoint import open_checkpoint
from runtime.worker.memory import TooFewPages
from tests.golden import GOLDEN

OWN = "(the checkpoint's own length is {})"
TINY = str(GOLDEN / "llada2_tiny")


def planned(path: str = TINY, memory: DeviceMemory | None = None, **flags: Any) -> ModelPlan:
    """Returns the plan of a model on a device with this memory; None: a CPU whose memory is not known."""
    config = EngineConfig(model=path, skip_tokenizer=True, **flags)
    checkpoint = open_checkpoint(path, has_weights=False)
    plan = plan_model(config, checkpoint)
    return plan.fitted(plan.sizing(config, checkpoint, torch.bfloat16, SINGLE_RANK), memory)[0]


def loaded(**flags: Any) -> Any:
    return load_engine(EngineConfig(model=TINY, device="cpu", skip_tokenizer=True, **flags))


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [line for line in caplog.messages if line.startswith("max_model_len")]


@pytest.mark.parametrize(
    ("flags", "length", "source"),
    [
        ({}, 512, "the checkpoint's own"),
        ({"max_model_len": 300}, 300, "from --max-model-len"),
        ({"num_pages": 16}, 512, "the checkpoint's own"),
        ({"num_pages": 15}, 256, f"the longest request that --num-pages 15 holds {OWN.format(512)}"),
    ],
)
def test_the_length_and_its_source_are_logged(
    caplog: pytest.LogCaptureFixture, flags: dict[str, Any], length: int, source: str
) -> None:
    with caplog.at_level(logging.INFO):
        info = loaded(**flags).info
    assert (info.max_model_len, logged(caplog)) == (length, [f"max_model_len {length}, {source}"])


def test_too_little_memory_for_the_length_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"15 pages of 32 tokens, fewer than the 16 .* --max-model-len 512 needs"):
        loaded(num_pages=15, max_model_len=512)
    with pytest.raises(ConfigError, match=r"7 pages of 32 tokens, fewer than the 8 .* --max-model-len 256 needs"):
        loaded(num_pages=7)


@pytest.mark.parametrize("strategy", ["full", "d2f"])
def test_prompts_that_are_not_split_limit_the_length(tmp_path: Path, strategy: str) -> None:
    for positions, budget, length in ((9000, 8192, 8192), (9000, 300, 300), (256, 300, 256)):
        (tmp_path / "config.json").write_text(json.dumps(architecture("llada-8b") | {"max_sequence_length": positions}))
        flags = {"decoding_strategy": strategy, "max_num_batched_tokens": budget, "num_pages": 1000}
        plan = planned(str(tmp_path), **flags)
        assert plan.strategy.max_rows() <= budget
        assert length <= plan.context.max_model_len <= length + 1  # d2f forwards one position less
        assert (f"--max-num-batched-tokens {budget} allows" in plan.length_source) == (length < positions)
    with pytest.raises(ConfigError, match="--max-num-batched-tokens: 100 is less than the"):
        planned(str(tmp_path), **flags | {"max_num_batched_tokens": 100})


@pytest.mark.parametrize(
    ("name", "free", "flags", "length"),
    [  # GB of memory and the length; keys and values take 147,456 bytes a token in bfloat16, weights 16.4 GB
        ("cuda", 150, {}, 32768),
        ("cuda", 22, {}, 23040),  # (22 * .9 - 16.381) / 147,456 bytes, in steps of 256
        ("cuda", 22, {"gpu_memory_utilization": 0.8}, 8192),
        ("cuda", 22, {"num_pages": 20}, 512),
        ("cuda", 18, {}, 256),  # the server then refuses the model
        ("cuda", 18, {"quantization": "fp8"}, 32768),
        ("cpu", 64, {}, 7168),  # 1 GiB
        ("cpu", 17, {}, 4096),  # what weights leave of the host's memory
        ("cpu", 64, {"num_pages": 4096}, 32768),
    ],
)
def test_the_length_is_the_longest_that_a_device_holds(
    tmp_path: Path, name: str, free: float, flags: dict[str, Any], length: int
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(architecture("sdar-8b")))
    memory = DeviceMemory("a device", int(free * 1e9), name)
    plan = planned(str(tmp_path), memory, **flags)
    assert plan.context.max_model_len == plan.strategy.total_len(length - 1, 1) == length
    assert planned(str(tmp_path), memory, max_model_len=32768, **flags).context.max_model_len == 32768


@pytest.mark.parametrize("key", strategies())
@pytest.mark.parametrize("page", [8, 32, 64])
def test_the_longest_request_is_maximal(key: str, page: int) -> None:
    strategy = make_strategy(key, (key,), DecodingContext(32, None, True, 4096, vocab_size=9))
    for pages in (0, 1, 3, 40, 129):
        length = longest_request(strategy, 4096, page, pages)
        assert length == 0 or max_request_pages(strategy, length, page) <= pages
        step = 1 if length < LENGTH_STEP else LENGTH_STEP
        assert length == 4096 or max_request_pages(strategy, length + step, page) > pages


def test_a_measured_step_that_takes_more_lowers_a_default_length(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    build, seen = setup.build_model_runner, []

    def measured(config: EngineConfig, info: Any, *arguments: Any) -> Any:
        seen.append(info.max_model_len)
        if info.max_model_len > 256:
            raise TooFewPages("too few pages", 12)
        return build(config, info, *arguments)

    monkeypatch.setattr(setup, "build_model_runner", measured)
    with caplog.at_level(logging.INFO):
        engine = loaded()
    assert (seen, engine.info.max_model_len, engine.strategy.total_len(255, 1)) == ([512, 256], 256, 256)
    assert logged(caplog)[1:] == [
        f"max_model_len 256, the longest request for which there is memory besides that of steps {OWN.format(512)}"
    ]
    with pytest.raises(TooFewPages):
        loaded(max_model_len=512)


def test_ranks_have_the_length_of_the_one_with_the_least_memory() -> None:
    rank = SimpleNamespace(group=SimpleNamespace(min_across_ranks=lambda number, device: min(number, 400)), device=None)
    assert setup._equal_length(planned(), cast(Any, rank)).context.max_model_len == 400
    assert setup._equal_length(planned(max_model_len=500), cast(Any, rank)).context.max_model_len == 500


def test_replicas_serve_the_shortest_length_of_them() -> None:
    info = loaded().info
    client = LocalEngineClient.__new__(LocalEngineClient)
    nothing = SimpleNamespace(on_loaded=lambda *_: None, on_ready=lambda *_: None)
    client.lengths, client.metrics, client.adapters, client.on_change = {}, cast(Any, nothing), cast(Any, nothing), bool
    lengths = []
    for replica, length in ((0, 512), (1, 256), (0, 300), (1, 512)):
        client.on_ready(replica, msgspec.structs.replace(info, max_model_len=length), 1.0)
        assert client.info is not None
        lengths.append(client.info.max_model_len)
    assert lengths == [512, 256, 256, 300]


def test_a_request_for_a_longer_replica_is_refused_by_a_shorter_one() -> None:
    """A frontend may have resolved it before a replica with less memory became ready."""
    with LLM(TINY, device="cpu", skip_tokenizer=True, max_model_len=64) as llm:
        spec = RequestSpec(id="a", prompt=[5] * 60, max_tokens=5, decoding=llm.info.defaults())
        with pytest.raises(ValueError, match="longer than max_model_len 64 of this replica"):
            llm.engine.add(spec)
        assert not llm.engine.has_work()

"""Tests of CUDA graphs on the GPU: replayed steps give the same tokens as eager steps in float32."""

import pytest

from runtime.config import EngineConfig
from runtime.engine.setup import load_engine
from runtime.request.engine_messages import RequestSpec
from tests.golden import GOLDEN
from tests.worker.replays import PROMPTS, SMALL, Served, answers, check, served

pytestmark = pytest.mark.gpu  # selected by this marker only, so that a missing device is a failure and no skip
DEVICE = {"device": "cuda", "dtype": "float32"}


@pytest.mark.parametrize("each", served())
def test_replayed_steps_answer_like_eager_steps(each):
    check(each, 3, **DEVICE)


def test_forwards_can_be_captured_without_sampling():
    expected, _ = answers(Served("llada2_tiny"), **DEVICE)
    found, runner = answers(Served("llada2_tiny"), **DEVICE, disable_full_static_runner=True)
    assert found == expected
    assert set(runner.stats.eager) <= {"flag", "prefill"}


@pytest.mark.parametrize("mode", ["default", "max-autotune-no-cudagraphs"])
def test_compiled_forwards_are_captured(mode):
    expected, _ = answers(Served("llada2_tiny"), **DEVICE)
    found, runner = answers(Served("llada2_tiny"), **DEVICE, torch_compile_mode=mode)
    assert found == expected
    assert runner.stats.replayed


def test_graph_memory_and_device_time_are_reported():
    _, runner = answers(Served("llada2_tiny"), **DEVICE)
    assert runner.stats.graph_bytes > 0
    assert len(runner.stats.device_seconds) > 0
    assert all(seconds > 0 for seconds in runner.stats.device_seconds)


def test_graphs_captured_between_steps_change_no_answer():
    expected = complete(captures=False)
    assert complete(captures=True) == expected


def complete(*, captures):
    """Returns the answers of the requests. `captures`: graphs are captured between their steps."""
    flags = {"model": str(GOLDEN / "llada2_tiny"), "skip_tokenizer": True, **DEVICE, **SMALL, "max_num_reqs": 64}
    engine = load_engine(EngineConfig.from_flags(**flags | {"max_num_batched_tokens": 2048}))
    stats = engine.runner.stats
    pending, graph_bytes = stats.graphs_pending, stats.graph_bytes
    assert pending > 0
    tokens = {}
    for n, prompt in enumerate(PROMPTS):
        engine.add(
            RequestSpec(id=str(n), prompt=prompt, max_tokens=40, ignore_eos=True, decoding=engine.info.defaults())
        )
    while engine.has_work():
        for output in engine.step():
            tokens.setdefault(output.id, []).extend(output.new_tokens)
        if captures:
            engine.capture_next()
    assert (stats.graphs_pending < pending) is captures
    while engine.capture_next():
        pass
    assert stats.graphs_pending == 0
    assert stats.graph_bytes >= graph_bytes > 0
    engine.close()
    return tokens

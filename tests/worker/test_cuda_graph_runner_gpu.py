"""Tests of CUDA graphs on the GPU: replayed steps give the same tokens as eager steps in float32."""

import pytest

from tests.worker.replays import Served, answers, answers_between, check, served

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
    assert answers_between(captures=True, **DEVICE) == answers_between(captures=False, **DEVICE)

"""On the device, steps replayed as CUDA graphs answer as those launched anew, token for token in float32."""

import pytest

from tests.worker.replays import Served, answers, check, served

pytestmark = pytest.mark.gpu  # asked for by name, so that a missing device fails them rather than skips them
DEVICE = {"device": "cuda", "dtype": "float32"}


@pytest.mark.parametrize("each", served())
def test_graphs_answer_as_launches_do(each):
    check(each, 3, **DEVICE)


def test_forwards_alone_may_be_recorded():
    expected, _ = answers(Served("llada2_tiny"), **DEVICE)
    found, runner = answers(Served("llada2_tiny"), **DEVICE, disable_full_static_runner=True)
    assert found == expected
    assert set(runner.stats.eager) <= {"flag", "prefill"}


@pytest.mark.parametrize("mode", ["default", "max-autotune-no-cudagraphs"])
def test_what_is_compiled_is_recorded_too(mode):
    expected, _ = answers(Served("llada2_tiny"), **DEVICE)
    found, runner = answers(Served("llada2_tiny"), **DEVICE, torch_compile_mode=mode)
    assert found == expected
    assert runner.stats.replayed


def test_their_memory_is_told_and_the_device_is_timed():
    _, runner = answers(Served("llada2_tiny"), **DEVICE)
    assert runner.stats.graph_bytes > 0
    assert len(runner.stats.device_seconds) > 0
    assert all(seconds > 0 for seconds in runner.stats.device_seconds)

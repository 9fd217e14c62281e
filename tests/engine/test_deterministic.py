"""Tests of `--deterministic` on a CPU: bits do not depend on the schedule, and answers equal those without the flag."""

import pytest

from tests.engine.bits import answers, check, check_looks, listening, questions
from tests.matrix import marked
from tests.worker.replays import Served, served

SCHEDULES = {"max_num_reqs": 3}, {"max_num_reqs": 8, "max_num_batched_tokens": 192, "enforce_eager": True}


@pytest.fixture
def received(monkeypatch):
    with listening(monkeypatch) as found:
        yield found


@pytest.mark.parametrize("seed", marked([0, 1], quick=[0]))
def test_bits_do_not_depend_on_the_batch(received, seed):
    check(Served("llada2_tiny"), questions(4, seed, tokens=6, longest=45), received, *SCHEDULES)


@pytest.mark.parametrize("quantization", marked(["fp8", "int8"], quick=["int8"]))
def test_bits_with_quantized_weights_do_not_depend_on_the_batch(received, quantization):
    asked = questions(3, 2, tokens=4, longest=40)
    check(Served("llada2_tiny"), asked, received, SCHEDULES[0], quantization=quantization)


@pytest.mark.slow
@pytest.mark.parametrize("each", served(once=True))
def test_bits_of_any_family_and_strategy_do_not_depend_on_the_batch(received, each):
    check(each, questions(6, 3), received, *SCHEDULES)


def test_bits_without_the_flag_depend_on_the_batch(received):
    """This shows that the tests above detect differences."""
    asked = questions(4, 0, tokens=6, longest=45)
    answers(Served("llada2_tiny"), [[question] for question in asked], deterministic=False)
    alone = set(received)
    received.clear()
    answers(Served("llada2_tiny"), [asked], deterministic=False)
    assert received != alone


@pytest.mark.parametrize("folder", marked(["llada2_tiny", "sdar_moe", "dmax"], quick=["llada2_tiny"]))
def test_answers_equal_those_without_the_flag(folder):
    asked = [questions(4, 5, tokens=8)]
    assert answers(Served(folder), asked) == answers(Served(folder), asked, deterministic=False)


def test_logits_for_the_host_are_computed_per_request(tmp_path, monkeypatch):
    check_looks(tmp_path, monkeypatch, device="cpu")

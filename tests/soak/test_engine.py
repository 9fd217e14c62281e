"""Sends thousands of random requests to one engine: `pytest -m slow tests/soak/test_engine.py` (some minutes)."""

import random

import psutil
import pytest

from tests.engine.harness import Ask, Run, Setup, check_idle, check_received
from tests.engine.samples import ALGORITHMS
from tests.oracle.block import Params
from tests.oracle.decode import decode

REQUESTS = 1500


def ask(rng: random.Random, setup: Setup) -> Ask:
    """Returns a short or long request, random or greedy, of any algorithm. A third of them share a prefix."""
    length = rng.randint(1, 12) if rng.random() < 0.6 else rng.randint(1, setup.max_len - 2)
    stem = rng.randrange(3) if rng.random() < 0.33 else rng.randrange(10**6)
    prompt = tuple((stem * 7 + i * i) % 15 for i in range(length))
    params = Params(
        max_tokens=rng.randint(1, min(40, setup.max_len - length)), temperature=rng.choice([0.0, 0.0, 1.0]),
        top_p=rng.choice([1.0, 0.8]), seed=rng.getrandbits(64), ignore_eos=rng.random() < 0.5,
        algorithm=rng.choice([*ALGORITHMS, "threshold"]), accept_threshold=rng.choice([0.1, 0.4, 0.8, 1.0]),
        edit_threshold=rng.choice([0.2, 0.9]), remask_threshold=rng.choice([0.0, 0.0, 0.2]), max_post_edit_steps=4,
        max_steps_per_block=8, steps=rng.randint(1, 8),
        confidence_metric=rng.choice(["max_prob", "margin", "neg_entropy"]), factor=rng.choice([0.5, 1.0, 2.0]),
        entropy_bound=rng.choice([0.1, 2.0, 5.0]), suppress_eos=rng.choice(["none", "none", "confidence", "logits"]),
    )  # fmt: skip
    report, salt = rng.choice(["final", "stable", "denoise"]), rng.choice(["", "tenant"])
    return Ask(prompt, params, report, salt, alone=rng.random() < 0.05)


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("seed", range(3))
def test_thousands_of_requests_equal_the_oracle_and_leave_nothing(seed: int) -> None:
    rng = random.Random(seed)
    setup = Setup(
        block=(4, 8, 4)[seed], buffer=seed + 1, page=(8, 4, 4)[seed], pages=40, budget=36, max_reqs=12, max_len=72
    )
    run = Run(setup)
    compared = 0
    started = 0
    process = psutil.Process()
    early = 0
    while started < REQUESTS or run.engine.has_work():
        while started < REQUESTS and len(run.engine._requests) < 20 and rng.random() < 0.5:
            run.add(ask(rng, setup))
            started += 1
        run.step()
        if run.engine._requests and rng.random() < 0.01:
            run.abort(rng.choice(sorted(run.engine._requests)))
        for id in [id for id, result in run.received.items() if result.ended or id in run.aborted]:
            outputs, asked = run.received.pop(id), run.asks[id]
            if outputs.ended and rng.random() < 0.2:
                result = decode(run.logits_of, asked.prompt, asked.params, setup.oracle)
                check_received(outputs, result, asked.report, complete=True)
                compared += 1
            run.aborted.discard(id)
        if not early and started >= REQUESTS // 3:
            early = process.memory_full_info().uss
    check_idle(run.engine)
    assert compared > REQUESTS / 10
    assert run.engine.scheduler.preemptions > REQUESTS / 100
    assert run.engine.stats().prefix_hit_tokens > REQUESTS / 10
    assert process.memory_full_info().uss - early < 20 << 20

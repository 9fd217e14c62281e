"""Tests that tensor parallel workers capture the same graph in the same step."""

import sys
from pathlib import Path

import msgspec
import pytest
import torch

from runtime.config import EngineConfig
from runtime.distributed.process_group import AllReduceBuffer
from runtime.errors import ReplicaLost
from runtime.executor.executor import local_engine
from runtime.request.engine_messages import RequestSpec
from runtime.worker.cuda_graph_runner import LockstepCapturer
from tests.executor.capturing_rank import Capturer, capture_on_cpu
from tests.golden import GOLDEN

ROOT = Path(__file__).resolve().parents[2]
RANK = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from tests.executor.capturing_rank import main; main()"
PROMPTS = ([5, 6, 7], [9, 8, 7, 6, 5, 4, 3, 9, 8], list(range(20, 53)))


def answers(path, *, failing: str = "", enforce_eager: bool = False) -> tuple[dict[str, list[int]], int]:
    """Returns the answers of two ranks that capture in and between steps, and the number of pending graphs."""
    config = EngineConfig.from_flags(
        model=str(GOLDEN / "llada2_tiny"), skip_tokenizer=True, device="cpu", max_num_reqs=4, num_pages=256,
        max_num_batched_tokens=128, max_model_len=96, tensor_parallel_size=2, distributed_timeout_seconds=600,
        enforce_eager=enforce_eager,
    )  # fmt: skip
    engine, ranks = local_engine(config, command=(sys.executable, "-c", RANK, str(path), failing))
    try:
        defaults = engine.info.defaults("threshold")
        slow = msgspec.structs.replace(defaults, values=defaults.values | {"accept_threshold": 1.0})
        found: dict[str, list[int]] = {}
        for number, prompt in enumerate(PROMPTS):
            engine.add(RequestSpec(id=str(number), prompt=prompt, max_tokens=16, ignore_eos=True, decoding=slow))
            while engine.has_work():
                for output in engine.step():
                    found.setdefault(output.id, []).extend(output.new_tokens)
            engine.capture_next()
            engine.capture_next()
        return found, engine.stats().graphs_pending
    finally:
        engine.close()
        ranks.close()


@pytest.mark.matrix
def test_ranks_capture_the_same_graphs_in_the_same_steps(tmp_path, monkeypatch):
    """Some captures fail on rank 1, which then uses the same sizes and collective operations as the other rank."""
    expected, _ = answers(tmp_path / "eager", enforce_eager=True)
    log: list[str] = []
    capture_on_cpu(monkeypatch, log.append)
    found, pending = answers(tmp_path / "log", failing="2,4,6,7")
    assert found == expected
    assert all(len(tokens) == 16 for tokens in found.values())
    assert (tmp_path / "log").read_text().splitlines() == log
    steps = [int(line.split()[0]) for line in log]
    assert len(set(steps)) > 3
    assert any(steps.count(step) > 1 for step in steps[2:])  # also between steps
    assert pending


def test_work_that_fails_on_a_rank_loses_the_replica():
    def fail() -> None:
        raise RuntimeError("out of memory")

    with pytest.raises(ReplicaLost, match="a CUDA graph: out of memory"):
        LockstepCapturer(Capturer(()))(fail)


class ReducedWork:
    """Work with an odd number of all-reduces, as a forward has if its last layer is split."""

    def __init__(self, fails: bool) -> None:
        self.fails = fails
        self.buffer = AllReduceBuffer(torch.device("cpu"))
        self.used: list[tuple[int, int]] = []  # size and index of each buffer that the last run used

    def reduce(self, size: int = 8) -> tuple[int, int]:
        put = self.buffer.put(torch.zeros(size))
        sizes = enumerate(self.buffer.buffers)
        return next((n, k) for n, pair in sizes for k, x in enumerate(pair) if x.data_ptr() == put.data_ptr())

    def run(self, until: int = 3) -> None:
        self.used = [self.reduce() for _ in range(until)]

    def capture(self, work):
        work()
        if self.fails:
            self.run(until=2)
            raise RuntimeError("out of memory")
        work()
        captured = self.used

        def replay() -> None:
            self.used = captured

        return replay


def test_a_rank_that_cannot_capture_uses_the_buffers_of_the_others():
    """Ranks access each other's buffers, so an all-reduce with different buffers would never end."""
    found = []
    for fails in (False, True):
        rank = ReducedWork(fails)
        replay = LockstepCapturer(rank.capture, rank.buffer)(rank.run)
        steps = []
        for size in (8, 8, 1 << 20, 8):  # a later prefill needs larger buffers
            replay()
            steps.append((rank.used, rank.reduce(size)))
        found.append(steps)
    assert found[0] == found[1]
    assert found[0][2][1][0] == 1

"""Tensor parallel workers capture the same graph in the same step."""

import sys
from pathlib import Path

import msgspec
import pytest

from runtime.config import EngineConfig
from runtime.distributed.executor import local_engine
from runtime.errors import ReplicaLost
from runtime.request.engine_messages import RequestSpec
from runtime.worker.cuda_graph_runner import LockstepCapturer
from tests.distributed.capturing_rank import Capturer, capture_on_cpu
from tests.golden import GOLDEN

ROOT = Path(__file__).resolve().parents[2]
RANK = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from tests.distributed.capturing_rank import main; main()"
PROMPTS = ([5, 6, 7], [9, 8, 7, 6, 5, 4, 3, 9, 8], list(range(20, 53)))


def answers(path, *, failing: str = "", enforce_eager: bool = False) -> tuple[dict[str, list[int]], int]:
    """Answers of a pair of ranks that capture within and between steps, and the number of graphs left."""
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


@pytest.mark.parametrize("failing", ["", "2,4,6,7"], ids=["captured", "capture_fails_on_rank_1"])
def test_ranks_capture_the_same_graphs_in_the_same_steps(tmp_path, monkeypatch, failing):
    """If one rank cannot capture, its sizes and collective operations still are those of the others."""
    expected, _ = answers(tmp_path / "eager", enforce_eager=True)
    log: list[str] = []
    capture_on_cpu(monkeypatch, log.append)
    found, pending = answers(tmp_path / "log", failing=failing)
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

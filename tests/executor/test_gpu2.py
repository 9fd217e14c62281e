"""Tests with two GPUs: answers equal those of one GPU, and steps are captured."""

import pytest
import torch

from runtime import LLM, SamplingParams
from runtime.distributed.process_group import SymmetricMemoryAllReduce
from runtime.executor.executor import MultiprocExecutor
from runtime.executor.rank_launcher import WorkerPlacement
from tests.executor.cases import EXPERTS, FAMILIES, PROMPTS, served
from tests.executor.conftest import Lent

pytestmark = [
    pytest.mark.gpu2,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices"),
]
DEVICE = {"device": "cuda", "dtype": "float32", "num_pages": 256, "max_num_reqs": 4, "max_num_batched_tokens": 512}
TWO = {"tensor_parallel_size": 2, "distributed_timeout_seconds": 120}


@pytest.fixture(scope="module")
def gpu_ranks():
    """Yields two ranks for most tests of the module. Starting a process and its groups takes longer than a test."""
    torch.cuda.set_device(0)
    ranks = MultiprocExecutor(2, WorkerPlacement((0, 1)), TWO["distributed_timeout_seconds"])
    yield ranks
    ranks.close()


@pytest.fixture
def shared(monkeypatch, gpu_ranks):
    """Makes ``LLM(tensor_parallel_size=2)`` use these ranks instead of starting a process."""
    monkeypatch.setattr("runtime.executor.executor.local_executor", lambda config, command: Lent(gpu_ranks))


def answers(flags, **more):
    few = {"max_tokens": 24, "ignore_eos": True, "seed": 3}
    asked = [
        SamplingParams(**few, temperature=0),
        SamplingParams(**few, temperature=0.9),
        SamplingParams(**few, temperature=0.9, top_p=0.8, top_k=7),
    ]
    with LLM(**flags, **more) as llm:
        for _ in range(2):
            found = [(out.token_ids, out.nfe) for out in llm.generate(PROMPTS, asked)]
        stats = llm.engine.stats()
        return found, stats.steps_replayed, llm.logits([5, 6, 7, 3, 9, 12, 8] * 3)


def near(ours, expected, tolerance):
    """Checks the median error of the rows. A few may differ, as rounding can change the routing of a tiny model."""
    relative_error = (ours - expected).norm(dim=1) / expected.norm(dim=1)
    assert float(relative_error.median()) < tolerance


@pytest.mark.parametrize("key", FAMILIES)
def test_every_family(shared, tmp_path, key):
    flags = served(key, tmp_path) | DEVICE
    ours, replayed, logits = answers(flags, **TWO)
    expected, _, full = answers(flags)
    near(logits, full, 1e-3)
    assert replayed > 0
    if key != "diffusion_gemma":  # its 48 self-conditioned steps per canvas magnify rounding
        answered = [[tokens for tokens, _ in found] for found in (ours, expected)]
        pairs = [pair for two in zip(*answered, strict=True) for pair in zip(*two, strict=False)]
        same = sum(a == b for a, b in pairs)
        assert same > 0.7 * sum(len(tokens) for tokens, _ in expected)


@pytest.mark.parametrize("key", EXPERTS)
def test_expert_parallelism(shared, tmp_path, key):
    flags = served(key, tmp_path) | DEVICE
    ours, expected = answers(flags, **TWO, expert_parallel_size=2), answers(flags)
    near(ours[2], expected[2], 1e-3)
    assert ours[1] > 0


@pytest.mark.parametrize("quantization", [None, "fp8", "int8"])
@pytest.mark.parametrize("experts", [1, 2])
def test_bfloat16(shared, tmp_path, quantization, experts):
    flags = served("llada2_tiny", tmp_path) | DEVICE | {"dtype": "bfloat16", "quantization": quantization}
    near(answers(flags, **TWO, expert_parallel_size=experts)[2], answers(flags)[2], 0.3)


def test_ranks_use_symmetric_memory_if_possible(tmp_path, monkeypatch):
    flags = served("llada2_tiny", tmp_path) | DEVICE | TWO
    found = []
    for _ in range(2):
        with LLM(**flags) as llm:
            found.append((llm._ranks.group.buffer, llm.logits([5, 6, 7, 3, 9, 12, 8] * 3)))
        monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda *devices: False)
    (buffer, ours), (nothing, expected) = found
    assert isinstance(buffer, SymmetricMemoryAllReduce)
    assert nothing is None
    near(ours, expected, 1e-3)


def test_eager_steps(shared, tmp_path):
    flags = served("llada2_tiny", tmp_path) | DEVICE
    recorded, eager = answers(flags, **TWO), answers(flags, **TWO, enforce_eager=True)
    assert eager[1] == 0 < recorded[1]
    assert eager[0] == recorded[0]

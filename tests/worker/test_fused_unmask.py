"""Tests of the fused unmask kernel: it gives the same blocks as the algorithm and the block update."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from runtime.algorithms.base import LogitStat, algorithm_keys, get_algorithm
from runtime.kernels.ops import TORCH
from runtime.kernels.unmask import threshold_unmask_reference
from runtime.layers.kv_pool import LAYOUTS, KVShape
from runtime.layers.lm_head import LMHead
from runtime.scheduling.step_plan import StateWrite
from runtime.worker.candidates import SamplerConfig
from runtime.worker.host_buffers import PinnedBuffer
from runtime.worker.input_batch import AlgorithmDescriptor, SampleDescriptor
from runtime.worker.model_runner import ModelStep
from runtime.worker.request_states import RequestStates
from runtime.worker.sampler import to_block_results
from tests.worker.sampling import block_numbers

VOCAB, MASK, SIZE, BLOCKS = 12, 11, 8, 40
FUSED = [key for key in algorithm_keys() if get_algorithm(key).fused_threshold is not None]


class Model:
    """The parts of a model that sampling needs. Its hidden states are logits."""

    vocab_shard = None

    @staticmethod
    def final_hidden_states(left):
        return left

    def __init__(self, *, fused: bool) -> None:
        weight = type("Weight", (), {"tensor": torch.eye(VOCAB), "logits": lambda self, hidden: hidden.clone()})()
        self.lm_head = LMHead(weight, replace(TORCH, threshold_unmask=threshold_unmask_reference if fused else None))
        self.lm_head.fused_argmax = True


def step(tokens: np.ndarray, state: np.ndarray, *, fused: bool) -> ModelStep:
    """Returns a step of requests that have one block each, with these tokens and states [BLOCKS, SIZE]."""
    pool = LAYOUTS["unified"]([KVShape(1, 8, 8)], num_pages=1, page_size=8, dtype=torch.float32, device="cpu")
    states = RequestStates(BLOCKS, SIZE, pool.device)
    states.write(
        [StateWrite(n, 0, *content) for n, content in enumerate(zip(tokens, state, strict=True))],
        PinnedBuffer(pool.device),
    )
    return ModelStep(Model(fused=fused), pool, states, SamplerConfig(SIZE, MASK, VOCAB - 2, (3, 5)))


def random_batch(
    key: str, random: np.random.Generator
) -> tuple[SampleDescriptor, dict[str, torch.Tensor], tuple[np.ndarray, np.ndarray]]:
    rule = get_algorithm(key)
    state = random.integers(0, 3, (BLOCKS, SIZE)).astype(np.int8)
    state[-1] = 0
    block, at = np.nonzero(state == 1)
    block, at = np.append(block, [BLOCKS - 1] * 3), np.append(at, [0] * 3)  # like padding rows
    params = np.zeros((BLOCKS, len(rule.columns)))
    threshold, max_steps = rule.fused_threshold
    params[:, rule.columns[threshold.name]] = random.random(BLOCKS)
    params[:, rule.columns[max_steps.name]] = random.integers(1, 5, BLOCKS)
    arrays = {
        "rows": block * SIZE + at, "block": block, "at": at, "num_valid": np.array([len(block) - 3], np.int32),
        "block_first": 1 + np.arange(BLOCKS) * SIZE, "block_size": np.full(BLOCKS, SIZE),
        "numbers": block_numbers(
            BLOCKS, must_advance=random.random(BLOCKS) < 0.7, num_steps=random.integers(0, 4, BLOCKS)
        ),
        "params0": params,
    }  # fmt: skip
    descriptor = SampleDescriptor(BLOCKS, SIZE, (AlgorithmDescriptor(rule, 0, BLOCKS, len(block)),))
    tokens = np.where(state == 1, MASK, random.integers(0, VOCAB - 1, state.shape))
    return descriptor, {name: torch.from_numpy(array) for name, array in arrays.items()}, (tokens, state)


@pytest.mark.parametrize("key", FUSED)
@pytest.mark.parametrize("seed", range(5))
def test_fused_unmasking_gives_the_same_blocks(key: str, seed: int) -> None:
    descriptor, arrays, content = random_batch(key, np.random.default_rng(seed))
    hidden = 3 * torch.randn(BLOCKS * SIZE, VOCAB, generator=torch.Generator().manual_seed(seed))
    found, tables = [], []
    for fused in (True, False):
        steps = step(*content, fused=fused)
        outputs = steps.sample(descriptor, arrays, hidden)
        tables.append((steps.states.tokens, steps.states.states))
        assert ("remasked" in outputs) != fused, "the other implementation was used"
        found.append(
            to_block_results(descriptor, {name: t.numpy() for name, t in outputs.items()}, [np.arange(BLOCKS)])
        )
    for name, of in vars(found[0]).items():
        np.testing.assert_array_equal(of, vars(found[1])[name], name)
    for one, other in zip(*tables, strict=True):
        assert torch.equal(one, other)
    assert tables[0][0][1:].reshape(BLOCKS, SIZE).tolist() == found[0].tokens.tolist()
    assert tables[0][1][1:].reshape(BLOCKS, SIZE).tolist() == found[0].state.tolist()


@pytest.mark.parametrize("wants", [LogitStat.TOKEN_PROB, LogitStat.MARGIN, LogitStat.SUPPRESS_EOS])
def test_algorithms_that_need_further_statistics_are_not_fused(wants: LogitStat) -> None:
    descriptor, arrays, content = random_batch("threshold", np.random.default_rng(1))
    descriptor = replace(descriptor, groups=(replace(descriptor.groups[0], required_stats=int(wants)),))
    outputs = step(*content, fused=True).sample(descriptor, arrays, torch.randn(BLOCKS * SIZE, VOCAB))
    assert "remasked" in outputs


def test_threshold_alone_is_fused() -> None:
    assert FUSED == ["threshold"]

"""Runs a sampler on a plan, without a model runner."""

from collections.abc import Iterator

import numpy as np
import torch

from runtime.algorithms.base import BlockBatch, UnmaskingAlgorithm
from runtime.scheduling.step_plan import BLOCK_NUMBERS, REMASKED, DenoiseBlocks, StateWrite
from runtime.worker.host_buffers import PinnedBuffer
from runtime.worker.input_batch import sample_inputs
from runtime.worker.request_states import RequestStates
from runtime.worker.sampler import Sampler


def make_sampling_params(
    temperature: torch.Tensor, top_p: torch.Tensor, top_k: torch.Tensor, min_p: torch.Tensor | None = None
) -> torch.Tensor:
    """Returns float64 [rows, 4], as ``topk_topp_sampling.filtered_probs`` takes it."""
    columns = (temperature, top_p, top_k, torch.zeros_like(temperature) if min_p is None else min_p)
    return torch.stack([column.double() for column in columns], 1)


def alone(n: int, size: int) -> dict[str, np.ndarray]:
    """Returns where `n` blocks are that are all of a request each, as arguments of DenoiseBlocks."""
    return {"req_slot": np.arange(n), "start": np.zeros(n, dtype=np.int64), "size": np.full(n, size)}


def block_numbers(n: int, **numbers: np.ndarray) -> np.ndarray:
    """Returns `DenoiseBlocks.numbers` of `n` blocks; those that are not given are 0."""
    return np.array([numbers.get(name, np.zeros(n)) for name in BLOCK_NUMBERS], dtype=np.int64).T.copy()


def sample_plan(
    sampler: Sampler, blocks: DenoiseBlocks, hidden: torch.Tensor, self_conditioning: torch.Tensor | None = None,
    remasked: np.ndarray | None = None,
) -> Iterator[tuple[UnmaskingAlgorithm, torch.Tensor | None, BlockBatch]]:  # fmt: skip
    """Returns the results of ``Sampler.block_batches`` for blocks that are `alone`.

    Args:
        hidden: [rows, hidden] of all rows of the step.
        remasked: bool [n, B], positions that were masked again in an earlier step. None: none.
    """
    assert blocks.tokens is not None
    n, size = blocks.tokens.shape
    states = RequestStates(n, size, hidden.device)
    content = blocks.state if remasked is None else blocks.state + remasked * np.int8(REMASKED)
    writes = [StateWrite(i, 0, *each) for i, each in enumerate(zip(blocks.tokens, content, strict=True))]
    states.write(writes, PinnedBuffer(hidden.device))
    descriptor, arrays = sample_inputs(blocks, states)
    inputs = {name: torch.from_numpy(array).to(hidden.device) for name, array in arrays.items()}
    inputs |= states.gather(inputs["block_first"], inputs["block_size"], size).inputs()
    return sampler.block_batches(descriptor, inputs, hidden[inputs["rows"]], self_conditioning)

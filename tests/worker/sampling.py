"""Runs a sampler on a plan, without a model runner."""

from collections.abc import Iterator

import torch

from runtime.algorithms.base import BlockBatch, UnmaskingAlgorithm
from runtime.scheduling.step_plan import DenoiseBlocks
from runtime.worker.input_batch import sample_inputs
from runtime.worker.request_states import RequestStates
from runtime.worker.sampler import Sampler


def make_sampling_params(
    temperature: torch.Tensor, top_p: torch.Tensor, top_k: torch.Tensor, min_p: torch.Tensor | None = None
) -> torch.Tensor:
    """Returns float64 [rows, 4], as ``topk_topp_sampling.filtered_probs`` takes it."""
    columns = (temperature, top_p, top_k, torch.zeros_like(temperature) if min_p is None else min_p)
    return torch.stack([column.double() for column in columns], 1)


def sample_plan(
    sampler: Sampler, blocks: DenoiseBlocks, hidden: torch.Tensor, self_conditioning: torch.Tensor | None = None
) -> Iterator[tuple[UnmaskingAlgorithm, torch.Tensor | None, BlockBatch]]:
    """Returns the results of ``Sampler.block_batches``. `hidden`: [rows, hidden] of all rows of the step."""
    descriptor, arrays = sample_inputs(blocks, RequestStates(0, 0, torch.device("cpu")))
    inputs = {name: torch.from_numpy(array).to(hidden.device) for name, array in arrays.items()}
    return sampler.block_batches(descriptor, inputs, hidden[inputs["rows"]], self_conditioning)

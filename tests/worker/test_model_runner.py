"""Tests of the model runner: chunks of head and sampling, warm-up, and the fused argmax."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from runtime.algorithms import logits_ops
from runtime.algorithms.base import TOP_P, LogitStat, get_algorithm
from runtime.kernels.ops import TORCH
from runtime.kernels.segments import COUNT
from runtime.layers.kv_pool import UnifiedPool
from runtime.layers.lm_head import LMHead
from runtime.parameters.weight import UnquantizedWeight
from runtime.scheduling.step_plan import MASKED, AlgorithmBatch, BlockResults, DenoiseBlocks, StepPlan
from runtime.worker import candidates
from runtime.worker.candidates import SamplerConfig
from runtime.worker.model_runner import ModelRunner
from runtime.worker.sampler import Sampler
from runtime.worker.warmup import warm_up
from tests.engine.harness import Run, Setup
from tests.engine.hash_model import HashModel
from tests.engine.samples import asks, setups
from tests.examples import examples
from tests.worker.sampling import alone, block_numbers, sample_plan


@examples(16, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_chunk_sizes_of_head_and_sampling_do_not_change_results(
    monkeypatch: pytest.MonkeyPatch, data: st.DataObject
) -> None:
    monkeypatch.setattr(candidates, "LOGITS_CHUNK_ROWS", data.draw(st.integers(1, 9)))
    monkeypatch.setattr(candidates, "SAMPLING_CHUNK_ROWS", data.draw(st.integers(1, 4)))
    setup = data.draw(setups())
    run = Run(setup)
    run.finish(*data.draw(st.lists(asks(setup), min_size=1, max_size=4)))


class Listening(ModelRunner):
    """Records for every plan the number of rows, the largest number per sequence, and the number of sampled rows."""

    received: list[tuple[int, int, int]]

    def launch(self, plan: StepPlan) -> BlockResults:
        assert plan.blocks is not None
        rows = plan.segments[:, COUNT].max()
        self.received.append((plan.num_rows, int(rows), int(plan.blocks.sampled.sum())))
        return super().launch(plan)


def test_warmup_covers_every_size_and_samples_each_row(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = Setup(block=4, page=8)
    model = HashModel(setup.vocab)
    runner = Listening(
        model,
        UnifiedPool(model.kv_shapes, num_pages=3, page_size=setup.page, dtype=torch.float64, device="cpu"),
        SamplerConfig(setup.block, setup.mask, setup.max_token, ()),
    )
    runner.received = []
    drawn: list[int] = []
    distribution = logits_ops.LogitsOps.filtered_probs

    def counted(
        self: logits_ops.LogitsOps, logits: torch.Tensor, params: torch.Tensor, num_unfiltered: int
    ) -> torch.Tensor:
        assert bool((params[:, TOP_P] < 1).all())
        drawn.append(len(logits))
        return distribution(self, logits, params, num_unfiltered)

    monkeypatch.setattr(logits_ops.LogitsOps, "filtered_probs", counted)
    warm_up(runner, rows=45, max_seq_len=22)
    assert runner.received == [(4, 4, 4), (8, 8, 8), (16, 16, 16), (32, 20, 32), (44, 20, 44)]
    assert drawn == [4, 8, 16, 32, 44]


class Bare(LMHead):
    """An LM head with a fused argmax. It records which of its functions are called."""

    def __init__(self) -> None:
        super().__init__(UnquantizedWeight((1, 1), torch.float64, torch.device("cpu")), TORCH)
        self.fused_argmax = True
        self.asked: list[str] = []

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        self.asked.append("logits")
        return hidden.clone()

    def argmax(
        self, hidden: torch.Tensor, *, mask_id: int | None, max_token_id: int, allowed_ids: Sequence[int] = (),
        num_valid: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
        self.asked.append("likeliest")
        logits = hidden.clone()
        logits_ops.DEFAULT_LOGITS_OPS.mask_forbidden(
            logits, mask_id=mask_id, max_token_id=max_token_id, allowed_special_ids=allowed_ids
        )
        best = logits_ops.DEFAULT_LOGITS_OPS.greedy(logits)
        return best.token, best.confidence


@pytest.mark.parametrize(
    ("wants", "asked"), [(0, "likeliest"), (LogitStat.ARGMAX, "likeliest"), (LogitStat.ENTROPY, "logits")]
)
def test_no_logits_are_computed_where_argmax_is_enough(wants: int, asked: str) -> None:
    rule = get_algorithm("threshold")
    plan = DenoiseBlocks(
        rows=np.array([0, 4]), **alone(2, 4), tokens=np.full((2, 4), 9), state=np.full((2, 4), MASKED, np.int8),
        sampled=np.array([[True] * 4, [False, True, True, False]]), numbers=block_numbers(2), sampling_params=None,
        groups=(AlgorithmBatch(rule, np.arange(2), np.full((2, len(rule.columns)), 0.5), int(wants)),),
    )  # fmt: skip
    hidden = torch.randn(8, 10, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    found = []
    for logits in (Bare(), torch.clone):
        made = Sampler(logits, SamplerConfig(4, mask_id=9, max_token_id=8, eos_ids=(2,)))
        ((_, _, blocks),) = sample_plan(made, plan, hidden)
        found.append(blocks)
        if isinstance(logits, Bare):
            assert logits.asked == [asked]
    assert torch.equal(found[0].candidates, found[1].candidates)
    assert torch.equal(found[0].confidence, found[1].confidence)

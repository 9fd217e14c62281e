"""Tests that every unmasking algorithm decides on a GPU as on the CPU, in mixed batches over several steps."""

import numpy as np
import pytest
import torch

from runtime.algorithms.base import EditTokens, LogitStat, algorithm_keys, algorithms_with_edit_tokens
from runtime.scheduling.step_plan import FIXED, MASKED, UNMASKED, AlgorithmBatch, DenoiseBlocks
from runtime.worker.candidates import SamplerConfig
from runtime.worker.sampler import Sampler
from tests.worker.sampling import alone, block_numbers, sample_plan

pytestmark = pytest.mark.gpu  # selected explicitly, so a missing device must fail these tests and not skip them
VOCAB, SIZE, EACH, STEPS = 50, 16, 6, 4
ALTERNATIVES = [{}, {"confidence_metric": "margin", "suppress_eos": "confidence"}, {"confidence_metric": "neg_entropy"}]
ALTERNATIVES += [{"suppress_eos": "logits", "remask_threshold": 0.05, "penalty_lambda": 1.0}]
LOW = {"accept_threshold": 0.12, "local_leap.anchor": 0.12, "local_leap.neighbor": 0.1, "low_threshold": 0.1}
LOW |= {"entropy_bound": 7.0, "steps": 5, "max_steps_per_block": 3, "max_post_edit_steps": 2}


def trace(device: str, orders: EditTokens | None) -> list[torch.Tensor]:
    """Returns tokens and states of all blocks after each step."""
    random = np.random.default_rng(5)
    keys = algorithm_keys()
    n = EACH * len(keys)
    state = random.choice([FIXED, MASKED, MASKED, MASKED, UNMASKED], (n, SIZE)).astype(np.int8)
    tokens = np.where(state == MASKED, VOCAB - 1, random.integers(0, VOCAB - 2, (n, SIZE)))
    histories: dict[str, np.ndarray] = {}
    config = SamplerConfig(SIZE, VOCAB - 1, VOCAB - 2, eos_ids=(3, 9), edit_tokens=orders, vocab_size=VOCAB)
    head = Sampler(torch.clone, config, device)
    shown = []
    for step in range(STEPS):
        groups, unstable, sampling_params = [], np.zeros(n, dtype=bool), np.empty((n, 4))
        for i, key in enumerate(keys):
            rule, members = algorithms_with_edit_tokens(orders)(key), np.arange(i, n, len(keys))
            wants, rows = LogitStat.NONE, []
            for j, member in enumerate(members):
                own = {f.name: 2 if f.per_block else f.default for f in rule.fields}
                asked = LOW | ALTERNATIVES[j % len(ALTERNATIVES)]
                values = own | {name: value for name, value in asked.items() if name in own}
                wants |= rule.required_stats(values)
                unstable[member] = rule.may_revise(values)
                sampling_params[member] = 1.0 if j == 5 else 0.0, 0.9, 20, 0.01
                rows.append([*sampling_params[member], *rule.param_row(values)])
            memory = histories.get(key, np.zeros((EACH, SIZE, 0, len(rule.history_fields))))
            has_memory = (
                np.concatenate([memory, np.zeros((EACH, SIZE, 1, len(rule.history_fields)))], axis=2)
                if rule.history_fields
                else None
            )
            groups.append(AlgorithmBatch(rule, members, np.array(rows), int(wants), has_memory))
        plan = DenoiseBlocks(
            rows=np.arange(n) * SIZE, **alone(n, SIZE), tokens=tokens, state=state,
            sampled=(state == MASKED) | ((state == UNMASKED) & unstable[:, None]),
            numbers=block_numbers(
                n, must_advance=np.arange(n) % 3 > 0, num_steps=np.full(n, step),
                initial_masks=(state != FIXED).sum(1), post_edit_steps=np.full(n, step),
            ),
            sampling_params=sampling_params, groups=tuple(groups), draws=random.integers(0, 99, (n, 3)),
            uniform_noise=True,
        )  # fmt: skip
        hidden = torch.from_numpy(random.normal(0, 1.5, (n * SIZE, VOCAB))).to(device)
        after, masked = tokens.copy(), state == MASKED
        for rule, members, blocks in sample_plan(head, plan, hidden):
            decision = rule.decide(blocks)
            mine = members.cpu().numpy()
            after[mine], masked[mine] = decision.tokens.cpu().numpy(), decision.masked.cpu().numpy()
            if blocks.history is not None:
                histories[rule.key] = blocks.history.cpu().numpy()
        state = np.where(state == FIXED, FIXED, np.where(masked, MASKED, UNMASKED)).astype(np.int8)
        tokens = np.where(masked, VOCAB - 1, after)
        shown += [torch.from_numpy(tokens), torch.from_numpy(state.astype(np.int64))]
    return shown


@pytest.mark.parametrize("orders", [None, EditTokens(4, 11), EditTokens(VOCAB - 3, VOCAB - 4)])
def test_the_device_decides_as_the_cpu(orders):
    here, there = trace("cpu", orders), trace("cuda", orders)
    assert all(torch.equal(a, b) for a, b in zip(here, there, strict=True))
    assert not torch.equal(here[0], here[2])

"""What `--deterministic` promises: a request's bits are the same whatever runs beside it, however its prompt is cut,
and whatever of it was in the prefix cache. Of small checkpoints, on any device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from runtime import LLM, SamplingParams
from runtime.engine.model_runner import ModelRunner
from runtime.engine.replaying import ReplayingRunner
from runtime.state.plan import BlockPlan
from tests.engine.replays import Served
from tests.golden import GOLDEN

Bits = set[bytes]


@dataclass(frozen=True)
class Question:
    """A prompt and how it is answered."""

    prompt: tuple[int, ...]
    params: SamplingParams


@contextmanager
def listening(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bits]:
    """The hidden states of all sampled rows, in bytes; cleared by whoever likes."""
    heard: Bits = set()

    def hear(blocks: BlockPlan, hidden: torch.Tensor) -> None:
        block, at = np.nonzero(blocks.sampled)
        rows = hidden[torch.from_numpy(blocks.rows[block] + at).to(hidden.device)].contiguous()
        heard.update(bytes(row) for row in rows.view(torch.uint8).cpu().numpy())

    sample, decide = ModelRunner._sample, ReplayingRunner._decide

    def sampled(self: ModelRunner, plan: Any, blocks: BlockPlan, hidden: torch.Tensor) -> Any:
        hear(blocks, hidden)
        return sample(self, plan, blocks, hidden)

    def decided(self: ReplayingRunner, step: Any, plan: BlockPlan, hidden: torch.Tensor, reason: str) -> Any:
        hear(plan, hidden)
        return decide(self, step, plan, hidden, reason)

    monkeypatch.setattr(ModelRunner, "_sample", sampled)
    monkeypatch.setattr(ReplayingRunner, "_decide", decided)
    yield heard


def answers(each: Served, groups: Sequence[Sequence[Question]], **flags: Any) -> list[Any]:
    """What is said to groups of questions, one group after the other."""
    flags = {"max_num_batched_tokens": 128, "num_pages": 512, "max_model_len": 128} | flags
    settings = dict(each.flags) | flags
    with LLM(str(GOLDEN / each.folder), skip_tokenizer=True, deterministic=True, **settings) as llm:
        said = []
        for group in groups:
            outs = llm.generate([list(q.prompt) for q in group], [q.params for q in group])
            said += [(out.token_ids, out.nfe) for out in outs]
        return said


def check(each: Served, questions: list[Question], heard: Bits, *schedules: dict[str, Any], **flags: Any) -> None:
    """One at a time, then all together under each of the schedules' flags, twice: the second time what the first left
    in the prefix cache is there."""
    heard.clear()
    expected = answers(each, [[q] for q in questions], disable_prefix_caching=True, **flags)
    alone = set(heard)
    assert alone
    for schedule in schedules:
        heard.clear()
        found = answers(each, [questions, questions], **flags | schedule)
        assert found == expected * 2, schedule
        assert heard == alone, (schedule, len(heard - alone), len(alone))

"""Checks of `--deterministic` with small checkpoints, on any device.

The bits of a request do not depend on the other requests of a batch, the chunks of its prompt, or prefix cache hits.
"""

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from runtime import LLM, SamplingParams
from runtime.scheduling.step_plan import DenoiseBlocks
from runtime.worker.candidates import CandidateSampler
from runtime.worker.cuda_graph_runner import CudaGraphRunner
from runtime.worker.model_runner import ModelRunner
from runtime.worker.next_step import NextStep
from tests.golden import GOLDEN
from tests.server.checkpoint import write_checkpoint
from tests.worker.replays import Served

Bits = set[bytes]


@dataclass(frozen=True)
class Question:
    """A prompt with its parameters."""

    prompt: tuple[int, ...]
    params: SamplingParams


def questions(count: int, seed: int, *, tokens: int = 12, longest: int = 70) -> list[Question]:
    """Returns prompts of random lengths with common beginnings. Every third answer has a temperature above 0."""
    numbers = random.Random(seed)
    common = [numbers.randrange(20, 100) for _ in range(longest)]
    made = []
    for n in range(count):
        prompt = common[: numbers.randrange(1, longest)]
        prompt += [numbers.randrange(20, 100) for _ in range(numbers.randrange(longest - len(prompt)))]
        params = SamplingParams(max_tokens=tokens, ignore_eos=True, seed=n, temperature=0.8 if n % 3 == 2 else 0.0)
        made.append(Question(tuple(prompt), params))
    return made


@contextmanager
def listening(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bits]:
    """Yields a set, to which the hidden states of all sampled rows are added as bytes."""
    received: Bits = set()

    @torch.inference_mode()
    def hear(runner: ModelRunner, blocks: DenoiseBlocks, left: torch.Tensor) -> None:
        block, at = np.nonzero(blocks.sampled)
        rows = left[torch.from_numpy(blocks.rows[block] + at).to(left.device)]
        rows = runner.model.final_hidden_states(rows).contiguous() if len(rows) else rows
        received.update(bytes(row) for row in rows.view(torch.uint8).cpu().numpy())

    def watched(kind: type[ModelRunner]) -> None:
        launch_sampling = kind.launch_sampling

        def sampled(self: ModelRunner, blocks: DenoiseBlocks | None, following: NextStep | None = None) -> None:
            if blocks is not None:
                assert self.hidden_states is not None
                hear(self, blocks, self.hidden_states)
            launch_sampling(self, blocks, following)

        monkeypatch.setattr(kind, "launch_sampling", sampled)

    watched(ModelRunner)
    watched(CudaGraphRunner)
    yield received


def answers(
    each: Served, groups: Sequence[Sequence[Question]], *, deterministic: bool = True, **flags: Any
) -> list[Any]:
    """Returns token ids and `nfe` of all answers. Each group is one batch; they run one after another."""
    settings = {"num_pages": 1024, "max_model_len": 96, "max_num_batched_tokens": 128, "max_num_reqs": 8}
    settings |= dict(each.flags) | flags | {"deterministic": deterministic}
    with LLM(str(GOLDEN / each.folder), skip_tokenizer=True, **settings) as llm:
        outputs = []
        for group in groups:
            outs = llm.generate([list(q.prompt) for q in group], [q.params for q in group])
            outputs += [(out.token_ids, out.nfe) for out in outs]
        return outputs


def check(each: Served, asked: list[Question], received: Bits, *schedules: dict[str, Any], **flags: Any) -> None:
    """Asserts that requests have the same answers and hidden states in batches as one at a time."""
    received.clear()
    expected = answers(each, [[question] for question in asked], disable_prefix_caching=True, **flags)
    alone = set(received)
    assert alone
    for schedule in schedules:
        received.clear()
        assert answers(each, [asked, asked], **flags | schedule) == expected * 2, schedule
        assert received == alone, (schedule, len(received - alone), len(alone))


def check_looks(directory: Path, monkeypatch: pytest.MonkeyPatch, **flags: Any) -> None:
    """Asserts that answers with grammars and log-probabilities are the same in a batch as alone."""
    looked: list[int] = []
    raw = CandidateSampler.full_logits

    def look(self: CandidateSampler, hidden: torch.Tensor) -> torch.Tensor:
        looked.append(len(hidden))
        return raw(self, hidden)

    monkeypatch.setattr(CandidateSampler, "full_logits", look)
    prompts = [[40, 41, 42], [50] * 9, [60, 61], [70] * 5]
    params = SamplingParams(max_tokens=11, temperature=0.8, logprobs=2, decoding={"accept_threshold": 0.05})
    forms = [{"regex": "[a-z ]{4,9}[0-9]"}, None, {"json": {"type": "array", "items": {"type": "boolean"}}}, None]
    asked = [replace(params, seed=n, structured_outputs=form) for n, form in enumerate(forms)]
    with LLM(str(write_checkpoint(directory)), max_model_len=64, num_pages=64, deterministic=True, **flags) as llm:
        alone = [llm.generate([prompt], each)[0] for prompt, each in zip(prompts, asked, strict=True)]
        counts, looked[:] = sorted(looked), []
        together = llm.generate(prompts, asked)
    for one, other in zip(alone, together, strict=True):
        assert (one.token_ids, one.nfe, one.logprobs) == (other.token_ids, other.nfe, other.logprobs)
    assert sorted(looked) == counts

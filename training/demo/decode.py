"""Greedy block decoding with the training model, without a cache, to evaluate the training.

One block is open at a time, and the algorithm is docs/research/decoding-rules.md#algorithm-threshold. The engine is
evaluated by `python -m runtime.bench eval`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from training.demo.model import DemoModel
from training.demo.tasks import all_tasks, held_out_samples
from training.demo.tokenizer import ChatEncoder


@dataclass(frozen=True)
class Score:
    """Score of a task: fraction of correct answers, and tokens (including turn ends) per forward."""

    accuracy: float
    tokens_per_forward: float


@torch.no_grad()
def decode(
    model: DemoModel,
    prompts: Sequence[Sequence[int]],
    encoder: ChatEncoder,
    threshold: float = 0.95,
    max_new: int = 160,
) -> tuple[list[list[int]], list[int]]:
    """Returns ids up to and including the end of the turn, and number of forwards, per prompt."""
    size, device = model.shape.block_size, model.lm_head.weight.device
    longest = max(len(p) for p in prompts)
    width = -(-(longest + max_new) // size) * size
    tokens = torch.full((len(prompts), width), encoder.mask, device=device)
    for row, prompt in enumerate(prompts):
        tokens[row, : len(prompt)] = torch.tensor(prompt, device=device)
    lengths = torch.tensor([len(p) for p in prompts], device=device)
    positions = torch.arange(width, device=device)
    masked = positions >= lengths.unsqueeze(1)
    start = lengths // size * size
    last = (lengths + max_new + size - 1) // size * size
    live = torch.ones(len(prompts), dtype=torch.bool, device=device)
    steps = torch.zeros(len(prompts), dtype=torch.long, device=device)
    while live.any():
        rows = live.nonzero().squeeze(1)
        upto = int(start[rows].max()) + size
        block = torch.arange(upto, device=device) // size
        visible = (block.unsqueeze(0) <= block.unsqueeze(1))[None, None]
        hidden = model(tokens[rows, :upto], positions[:upto].expand(len(rows), -1), visible)
        open_positions = start[rows].unsqueeze(1) + torch.arange(size, device=device)
        hidden = hidden.gather(1, open_positions.unsqueeze(-1).expand(-1, -1, hidden.shape[-1]))
        logits = model.lm_head(hidden).float()
        logits[..., encoder.mask] = -torch.inf
        confidence, choice = logits.softmax(-1).max(-1)
        is_open = masked[rows].gather(1, open_positions)
        confidence = torch.where(is_open, confidence, -1.0)
        take = is_open & (confidence > threshold)
        take |= ~take.any(1, keepdim=True) & (torch.arange(size, device=device) == confidence.argmax(1, keepdim=True))
        here = tokens[rows].gather(1, open_positions)
        tokens[rows] = tokens[rows].scatter(1, open_positions, torch.where(take, choice, here))
        masked[rows] = masked[rows].scatter(1, open_positions, is_open & ~take)
        steps[rows] += 1
        done = ~masked[rows].gather(1, open_positions).any(1)
        start[rows] += torch.where(done, size, 0)
        ended = _first(ends_at(tokens[rows], encoder) & (positions >= lengths[rows, None])) < _first(masked[rows])
        live[rows] = ~ended & (start[rows] < last[rows])
    stops = _first(ends_at(tokens, encoder) & (positions >= lengths.unsqueeze(1))).tolist()
    answers = [tokens[r, len(p) : min(stops[r] + 1, len(p) + max_new)].tolist() for r, p in enumerate(prompts)]
    return answers, steps.tolist()


def ends_at(tokens: torch.Tensor, encoder: ChatEncoder) -> torch.Tensor:
    return (tokens == encoder.eos) | (tokens == encoder.turn_end)


def _first(flags: torch.Tensor) -> torch.Tensor:
    """Returns the column of the first True of each row; the width if there is none."""
    return torch.where(flags.any(1), flags.int().argmax(1), flags.shape[1])


def score_tasks(model: DemoModel, encoder: ChatEncoder, names: Sequence[str], count: int) -> dict[str, Score]:
    """Scores each task on `count` held-out prompts."""
    tasks = all_tasks()
    scores = {}
    for name in names:
        samples = held_out_samples(tasks[name], count)
        longest = max(len(encoder.answer(s.answer)) for s in samples)
        answers, steps = decode(model, [encoder.prompt(s.messages) for s in samples], encoder, max_new=longest + 8)
        right = [tasks[name].check(s, encoder.decode(a)) for s, a in zip(samples, answers, strict=True)]
        scores[name] = Score(sum(right) / count, sum(map(len, answers)) / sum(steps))
    return scores

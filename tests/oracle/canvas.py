"""A naive decoder of canvases of noise. It decodes one request at a time.

It is written from docs/research/decoding-rules.md#algorithm-noise.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import torch


class Draws(Protocol):
    """Random ids of a decoding, each of shape [canvas length]."""

    def initial(self, start: int, size: int) -> torch.Tensor:
        """Returns those of a new canvas of `size` positions from `start` on."""
        ...

    def sampled(self, step: int, probs: torch.Tensor) -> torch.Tensor:
        """Returns an id for each row of `probs`. `step` counts the steps of all canvases."""
        ...

    def renoise(self, step: int) -> torch.Tensor: ...


@dataclass(frozen=True)
class Settings:
    max_steps: int
    entropy_bound: float
    t_min: float
    t_max: float
    stability_threshold: int
    confidence_threshold: float


@dataclass(frozen=True)
class Step:
    before: torch.Tensor  # int64 [C]
    accepted: torch.Tensor  # bool [C]
    argmax: torch.Tensor  # int64 [C]
    entropy: torch.Tensor  # [C], nats


@dataclass
class Answer:
    ids: list[int] = field(default_factory=list)
    finish_reason: str = "length"
    steps: list[list[Step]] = field(default_factory=list)  # of each canvas

    @property
    def nfe(self) -> int:
        return sum(len(canvas) for canvas in self.steps)


# committed ids, the canvas, the last step's tempered logits (None in the first step of a canvas) -> logits [C, vocab]
Denoiser = Callable[[list[int], list[int], torch.Tensor | None], torch.Tensor]


def decode(
    denoise: Denoiser, prompt: list[int], max_tokens: int, settings: Settings, draws: Draws, eos: set[int],
    size_at: Callable[[int], int],
) -> Answer:  # fmt: skip
    """Decodes one request. If `eos` is empty, no token ends the answer.

    A canvas has `size_at(tokens left)` positions.
    """
    answer, seen = Answer(), list(prompt)
    while len(answer.ids) < max_tokens:
        steps, new = answer.nfe, draws.initial(len(seen), size_at(max_tokens - len(answer.ids)))
        answer.steps.append(_canvas(denoise, seen, new, settings, draws, steps))
        final = answer.steps[-1][-1].argmax.tolist()
        ends = [n for n, token in enumerate(final) if token in eos and len(answer.ids) + n < max_tokens]
        if ends:
            answer.ids += final[: ends[0]]
            answer.finish_reason = "stop"
            return answer
        answer.ids += final
        seen += final
    del answer.ids[max_tokens:]
    return answer


def _canvas(
    denoise: Denoiser, seen: list[int], canvas: torch.Tensor, settings: Settings, draws: Draws, first: int
) -> list[Step]:
    taken: list[Step] = []
    logits: torch.Tensor | None = None
    for left in range(settings.max_steps, 0, -1):
        logits = denoise(seen, canvas.tolist(), logits)
        logits = logits / (settings.t_min + (settings.t_max - settings.t_min) * (left / settings.max_steps))
        probs = logits.softmax(-1)
        entropy = torch.special.entr(probs).sum(-1)
        accepted = torch.zeros_like(canvas, dtype=torch.bool)
        total = 0.0
        for position in entropy.argsort(stable=True).tolist():
            accepted[position] = total <= settings.entropy_bound
            total += float(entropy[position])
        best = logits.argmax(-1)
        taken.append(Step(canvas, accepted, best, entropy))
        step = first + len(taken) - 1
        canvas = torch.where(accepted, draws.sampled(step, probs), draws.renoise(step))
        earlier = [past.argmax for past in taken[:-1]][-settings.stability_threshold :]
        stable = not settings.stability_threshold or (
            len(earlier) == settings.stability_threshold and all(torch.equal(past, best) for past in earlier)
        )
        if stable and float(entropy.mean()) < settings.confidence_threshold:
            break
    return taken

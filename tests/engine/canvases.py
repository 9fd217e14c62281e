"""Requests of canvases on the tiny DiffusionGemma checkpoint, with their random numbers and the oracle's answers."""

from collections.abc import Callable

import torch

from runtime import SamplingParams
from runtime.layers.layer_factory import LayerFactory
from runtime.models.base import resolve_family
from runtime.models.diffusion_gemma import DiffusionGemma
from runtime.weights.checkpoint import resolve_checkpoint
from runtime.weights.loader import load_model
from tests.golden import GOLDEN
from tests.models.canvas import Driver, Run
from tests.oracle import canvas
from tests.oracle.draws import mix

FOLDER = GOLDEN / "diffusion_gemma"
FIELDS = ("entropy_bound", "t_min", "t_max", "stability_threshold", "confidence_threshold")
LENGTH = 16  # positions of the checkpoint's canvases


class Own:
    """The random numbers of a request, by their definition (docs/research/decoding-rules.md#random-numbers)."""

    def __init__(self, seed: int, vocab: int) -> None:
        self.seed, self.vocab, self.nfe = seed, vocab, 0

    def uniforms(self, stream: int, step: int) -> list[float]:
        found = []
        for position in self.positions:
            h = mix(self.seed)
            for _ in range(stream):
                h = mix(h ^ (2**64 - 1))
            found.append((mix(mix(h ^ position) ^ step) >> 11) * 2.0**-53)
        return found

    def initial(self, start: int, size: int) -> torch.Tensor:
        self.positions = range(start, start + size)
        return torch.tensor([int(u * self.vocab) for u in self.uniforms(1, self.nfe)])

    def sampled(self, step: int, probs: torch.Tensor) -> torch.Tensor:
        drawn = [
            next(token for token, total in enumerate(row.cumsum(0).tolist()) if total > u)
            for row, u in zip(probs, self.uniforms(0, step), strict=True)
        ]
        return torch.tensor(drawn)

    def renoise(self, step: int) -> torch.Tensor:
        self.nfe = step + 1
        return torch.tensor([int(u * self.vocab) for u in self.uniforms(2, step)])


SETTINGS = (
    canvas.Settings(4, 0.1, 0.4, 0.8, 1, 0.005),
    canvas.Settings(9, 8.0, 0.2, 0.5, 1, 3.0),
    canvas.Settings(6, 1.0, 0.4, 0.8, 0, 0.6),
)
REQUESTS = [(23, 40, 0), (5, 33, 1), (32, 16, 2), (17, 20, 1)]  # tokens of the prompt and the answer, settings


def asked(n: int, ignore_eos: bool = True) -> tuple[list[int], SamplingParams]:
    length, max_tokens, number = REQUESTS[n]
    prompt = torch.randint(0, 220, (length,), generator=torch.Generator().manual_seed(n)).tolist()
    settings = SETTINGS[number]
    fields = {name: getattr(settings, name) for name in FIELDS} | {"max_denoising_steps": settings.max_steps}
    return prompt, SamplingParams(max_tokens=max_tokens, seed=40 + n, ignore_eos=ignore_eos, decoding=fields)


def load() -> DiffusionGemma:
    """Loads the model in float64."""
    checkpoint = resolve_checkpoint(str(FOLDER))
    family = resolve_family(None, checkpoint.config)
    build = LayerFactory.create("cpu", torch.float64)
    return load_model(checkpoint, family, family.parse(checkpoint.config), build)


def oracle_answer(
    model: DiffusionGemma, prompt: list[int], max_tokens: int, seed: int, settings: canvas.Settings,
    size_at: Callable[[int], int] = lambda left: LENGTH,
) -> canvas.Answer:  # fmt: skip
    """Decodes one request with the naive decoder. `size_at`: positions of a canvas, from the tokens left."""
    driver, committed = Driver(model, 1, len(prompt) + max_tokens + size_at(max_tokens), 4, torch.float64), 0

    def denoise(seen, ids, logits):
        nonlocal committed
        if committed < len(seen):
            driver.step(Run(0, seen[committed:], committed))
            committed = len(seen)
        signal = None if logits is None else model.compute_self_conditioning(logits.softmax(-1))
        return driver.step(Run(0, ids, len(seen), open=True, signal=signal))[0]

    return canvas.decode(denoise, prompt, max_tokens, settings, Own(seed, 224), set(), size_at)

"""The candidate of one position, in plain Python and numpy.

See docs/research/decoding-rules.md#candidates-and-confidence.
"""

from dataclasses import dataclass, field

import numpy as np

_MOD = 1 << 64


@dataclass(frozen=True)
class Choice:
    token: int
    conf: float
    probs: np.ndarray | None = field(default=None, compare=False, repr=False)  # the token's distribution


def mix(z: int) -> int:
    """Returns the splitmix64 step of `z`: the increment, then the finalizer."""
    z = (z + 0x9E3779B97F4A7C15) % _MOD
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) % _MOD
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) % _MOD
    return z ^ (z >> 31)


def uniform(seed: int, position: int, step: int) -> float:
    """Returns a number in [0, 1) that depends only on the three arguments."""
    h = mix(seed % _MOD)
    h = mix(h ^ position)
    h = mix(h ^ step)
    return (h >> 11) * 2.0**-53


def softmax(row: np.ndarray) -> np.ndarray:
    """Returns the probabilities, float64 [vocab], of logits, float64 [vocab]. A logit of -inf gives 0."""
    weights = np.exp(row - row.max())
    return weights / weights.sum()


def filtered(row: np.ndarray, top_k: int, top_p: float, min_p: float = 0.0) -> np.ndarray:
    """Returns the probabilities of `row` (already divided by T) after min-p, then top-k, then top-p, renormalized."""
    if min_p > 0:
        likely = softmax(row)
        row = np.where(likely < min_p * likely.max(), -np.inf, row)
    order = sorted(range(len(row)), key=lambda i: (-row[i], i))
    candidates = order[:top_k] if top_k > 0 else order
    logits = np.full(len(row), -np.inf)
    logits[candidates] = row[candidates]
    probs = softmax(logits)
    if top_p < 1.0:
        total = 0.0
        keep = []
        for i in sorted(candidates, key=lambda i: (-probs[i], i)):
            keep.append(i)
            total += probs[i]
            if total >= top_p:
                break
        logits[[i for i in candidates if i not in set(keep)]] = -np.inf
        probs = softmax(logits)
    return probs


def draw(probs: np.ndarray, u: float) -> int:
    """Returns the first id, in id order, whose cumulative probability exceeds u."""
    total = 0.0
    for i, p in enumerate(probs):
        total += p
        if total > u:
            return i
    return max(i for i, p in enumerate(probs) if p > 0)


def choose(
    row: np.ndarray, temperature: float, top_k: int, top_p: float, seed: int, position: int, step: int,
    min_p: float = 0.0,
) -> Choice:  # fmt: skip
    """Returns the candidate of a masked position. `row`: banned logits [vocab]."""
    if temperature < 1e-6:
        token = int(np.argmax(row))
        probs = softmax(row)
        return Choice(token, float(probs[token]), probs)
    probs = filtered(row / temperature, top_k, top_p, min_p)
    token = draw(probs, uniform(seed, position, step))
    return Choice(token, float(probs[token]), probs)

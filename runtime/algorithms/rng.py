"""Counter-based random numbers of a request (docs/research/decoding-rules.md#random-numbers)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_U64 = npt.NDArray[np.uint64]

# Independent streams of random numbers of one request.
DRAW, CANVAS, RENOISE = range(3)


def _mix(z: _U64) -> _U64:
    """Computes one splitmix64 step: adds the golden gamma, then applies the finalizer (arithmetic modulo 2**64)."""
    z = z + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def uniforms(
    seeds: npt.NDArray[np.uint64], positions: npt.NDArray[np.int64], steps: npt.NDArray[np.int64], stream: int = DRAW
) -> npt.NDArray[np.float64]:
    """Returns a number in [0, 1) for each seed, absolute position and step of the request. Arguments broadcast."""
    hashed = _mix(seeds)
    for _ in range(stream):
        hashed = _mix(~hashed)
    hashed = _mix(hashed ^ positions.astype(np.uint64))
    hashed = _mix(hashed ^ steps.astype(np.uint64))
    return (hashed >> np.uint64(11)).astype(np.float64) * 2.0**-53

"""Uniform random numbers of requests (docs/research/decoding-rules.md#random-numbers).

A number depends on the seed of a request, a position, the step of the request and the stream only. So it is the same
in any batch and on any device, and the host sends three integers per block.
"""

from __future__ import annotations

import torch

from runtime.kernels.common import tl, triton

DRAW, CANVAS, RENOISE = range(3)  # streams
ROWS = 256  # numbers per program


def _shifted(z: torch.Tensor, bits: int) -> torch.Tensor:
    """Returns the unsigned shift to the right."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def _mixed(z: torch.Tensor) -> torch.Tensor:
    """Computes one splitmix64 step: adds the golden gamma, then applies the finalizer (arithmetic modulo 2**64)."""
    z = z + (0x9E3779B97F4A7C15 - 2**64)
    z = (z ^ _shifted(z, 30)) * (0xBF58476D1CE4E5B9 - 2**64)
    z = (z ^ _shifted(z, 27)) * (0x94D049BB133111EB - 2**64)
    return z ^ _shifted(z, 31)


def uniform_numbers_reference(
    draws: torch.Tensor, block: torch.Tensor, at: torch.Tensor, stream: int = DRAW
) -> torch.Tensor:
    """Returns a number in [0, 1) for each position of blocks, float64 [rows].

    Args:
        draws: int64 [blocks, 3], the bits of the seed of each block's request, its step, and the position of the block.
        block, at: int64 [rows], block of each position, and its offset there.
    """
    seed, step, start = draws.unbind(1)
    hashed = _mixed(seed)
    for _ in range(stream):
        hashed = _mixed(~hashed)
    hashed = _mixed(hashed[block] ^ (start[block] + at))
    hashed = _mixed(hashed ^ step[block])
    return _shifted(hashed, 11).double() * 2.0**-53


@triton.jit
def _mix(z):
    z = z + 0x9E3779B97F4A7C15
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB
    return z ^ (z >> 31)


@triton.jit(do_not_specialize=["rows", "stream"])
def _uniform_numbers(draws_ptr, block_ptr, at_ptr, out_ptr, rows, stream, ROWS: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = row < rows
    own = draws_ptr + tl.load(block_ptr + row, mask=inside, other=0) * 3
    hashed = _mix(tl.load(own, mask=inside, other=0).to(tl.uint64, bitcast=True))
    for _ in range(stream):
        hashed = _mix(hashed ^ 0xFFFFFFFFFFFFFFFF)
    position = tl.load(own + 2, mask=inside, other=0) + tl.load(at_ptr + row, mask=inside, other=0)
    hashed = _mix(hashed ^ position.to(tl.uint64, bitcast=True))
    hashed = _mix(hashed ^ tl.load(own + 1, mask=inside, other=0).to(tl.uint64, bitcast=True))
    tl.store(out_ptr + row, (hashed >> 11).to(tl.float64) * 1.1102230246251565e-16, mask=inside)  # 2 ** -53


def uniform_numbers(draws: torch.Tensor, block: torch.Tensor, at: torch.Tensor, stream: int = DRAW) -> torch.Tensor:
    """Computes `uniform_numbers_reference` on a GPU."""
    out = torch.empty(len(block), dtype=torch.float64, device=block.device)
    if len(block):
        _uniform_numbers[(triton.cdiv(len(block), ROWS),)](
            draws, block, at, out, len(block), stream, ROWS=ROWS, num_warps=4
        )
    return out

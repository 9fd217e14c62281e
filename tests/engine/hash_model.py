"""A model without weights that notices everything: its logits are a hash of exactly what a row may see.

It has two layers, as a real model has K/V of tokens and K/V that depend on their context. Layer 0 of the cache keeps
each position's token and the position itself; layer 1 a hash of all that the position saw when its K/V was written. A
row's logits hash every value it reads, so that one stale, shared, misplaced or prematurely written entry changes them
altogether. All is exact: the same hash is computed from plain ids by `hash_logits`, for the oracle.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from runtime.models.base import ForwardBatch

_U64 = np.uint64


def digest(values: np.ndarray, *more: int) -> int:
    """52 bits, exact in float64."""
    data = np.asarray(values, dtype=np.int64).tobytes() + np.asarray(more, dtype=np.int64).tobytes()
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little") >> 12


def logits_of_hash(hashes: np.ndarray, vocab: int) -> np.ndarray:
    """float64 [n, vocab] of int64 [n].

    Of three kinds, by the hash: all equal (ties between tokens and between positions), a few coarse levels (ties
    between tokens), and one token raised so far that confidences reach from a guess to near certainty. The levels'
    spacing is the row's own: rows that hold the same numbers in another order would tie but for the last bit of a sum,
    which no rule settles.
    """
    h = hashes.astype(_U64)[:, None]
    z = h * _U64(0x9E3779B97F4A7C15) + np.arange(vocab, dtype=_U64) * _U64(0xD1B54A32D192ED03)
    z = (z ^ (z >> _U64(29))) * _U64(0xBF58476D1CE4E5B9)
    z ^= z >> _U64(32)
    step = 0.6 + 0.3 * ((h >> _U64(28)) % _U64(1 << 24)).astype(np.float64) / (1 << 24)
    levels = (z % _U64(5)).astype(np.float64) * step
    kind = (h[:, 0] % _U64(16)).astype(np.int64)
    out = np.where(kind[:, None] == 0, 0.0, levels)
    raised = ((h[:, 0] >> _U64(4)) % _U64(vocab)).astype(np.int64)
    height = ((h[:, 0] >> _U64(20)) % _U64(9)).astype(np.float64)
    some = np.flatnonzero(kind >= 4)
    out[some, raised[some]] += height[some]
    return out


def hash_logits(vocab: int, block: int) -> Callable[[Sequence[int]], np.ndarray]:
    """The model as a function of the whole sequence, block-causal."""

    def logits_of(ids: Sequence[int]) -> np.ndarray:
        tokens = np.asarray(ids, dtype=np.int64)
        context = np.zeros(len(tokens), dtype=np.int64)
        rows = np.zeros(len(tokens), dtype=np.int64)
        for start in range(0, len(tokens), block):
            end = min(start + block, len(tokens))
            for a in range(start, end):
                context[a] = digest(tokens[:end], a)
            for a in range(start, end):
                rows[a] = digest(context[:end], a)
        return logits_of_hash(rows, vocab)

    return logits_of


class HashModel:
    """`runtime.models.base.Model` on a float64 pool [2, 2, pages, page_size, 1, 1]."""

    num_layers = 2
    num_kv_heads = 1
    head_dim = 1

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    def forward(self, batch: ForwardBatch, kv_cache: Tensor) -> Tensor:
        pool = kv_cache.view(2, 2, -1)
        size = batch.page_size
        pool[0, 0, batch.slots] = batch.tokens.double()
        pool[1, 0, batch.slots] = batch.positions.double()
        out = torch.zeros(len(batch.tokens), 1, dtype=torch.float64)
        rows = batch.seq_rows.tolist()
        for n, (cached, length) in enumerate(zip(batch.cached.tolist(), batch.kv_len.tolist(), strict=True)):
            at = torch.arange(length)
            slots = batch.page_table[n].long()[at // size] * size + at % size
            mine = batch.positions[rows[n] : rows[n + 1]].tolist()
            assert mine == list(range(cached, length)), "a sequence's rows are its positions from `cached` on"
            assert batch.slots[rows[n] : rows[n + 1]].tolist() == slots[cached:].tolist()
            assert pool[1, 0, slots].tolist() == at.tolist(), "K/V was read where another position's was written"
            tokens = pool[0, 0, slots].long().numpy()
            for a in mine:
                end = min((a // batch.block_size + 1) * batch.block_size, length)
                pool[0, 1, slots[a]] = float(digest(tokens[:end], a))
            for row, a in enumerate(mine, rows[n]):
                end = min((a // batch.block_size + 1) * batch.block_size, length)
                out[row, 0] = float(digest(pool[0, 1, slots[:end]].long().numpy(), a))
        return out

    def logits(self, hidden: Tensor) -> Tensor:
        return torch.from_numpy(logits_of_hash(hidden[:, 0].long().numpy(), self.vocab_size))

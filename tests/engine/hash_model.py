"""A model without weights that detects wrong reads: its logits are a hash of exactly what a row may attend to.

It has two layers, as a real model has K/V of tokens and K/V that depend on their context. Layer 0 of the cache has
each position's token and the position itself. Layer 1 has a hash of everything that the position attended to when its
K/V was written. The logits of a row hash every value that it reads. So one stale, shared, misplaced or prematurely
written entry changes all of them. All values are exact: `hash_logits` computes the same hash from ids, for the oracle.
"""

import hashlib
import sys
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from runtime.kernels.forward_batch import ForwardBatch
from runtime.layers.kv_pool import KVPool, KVShape
from tests.oracle.masks import block_causal_ends

_U64 = np.uint64


def digest(values: np.ndarray, *more: int) -> int:
    """Returns a hash of 52 bits, which float64 represents exactly."""
    data = np.asarray(values, dtype=np.int64).tobytes() + np.asarray(more, dtype=np.int64).tobytes()
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little") >> 12


def digests(values: np.ndarray, ends: Iterable[int], positions: Iterable[int]) -> list[int]:
    """Returns `digest(values[:end], position)` of each pair. If the ends ascend, each value is hashed only once."""
    data = memoryview(np.asarray(values, dtype=np.int64).tobytes())
    state, reached, found = hashlib.blake2b(digest_size=8), 0, []
    for end, position in zip(ends, positions, strict=True):
        if end < reached:
            state, reached = hashlib.blake2b(digest_size=8), 0
        state.update(data[8 * reached : 8 * end])
        reached = end
        one = state.copy()
        one.update(position.to_bytes(8, sys.byteorder))
        found.append(int.from_bytes(one.digest(), "little") >> 12)
    return found


def logits_of_hash(hashes: np.ndarray, vocab: int) -> np.ndarray:
    """Returns logits, float64 [n, vocab], of hashes, int64 [n].

    The hash selects one of three kinds of rows: all logits equal (ties between tokens and between positions), a few
    coarse levels (ties between tokens), or the levels with one raised token. It is raised by different amounts, so that
    confidences range from low to almost 1. The spacing of the levels differs between rows. Otherwise the confidences of
    rows with the same logits in another order would differ only by rounding.
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


class HashMemory:
    """The hash model with a memory of what every position was last forwarded with; `Memory` of the oracles."""

    def __init__(self, vocab: int) -> None:
        self.vocab = vocab
        self.tokens = np.zeros(0, dtype=np.int64)
        self.contexts = np.zeros(0, dtype=np.int64)

    def forward(self, first: int, ids: Sequence[int], ends: Sequence[int]) -> np.ndarray:
        """Returns logits [len(ids), vocab] of the positions from `first` on."""
        last = first + len(ids)
        grown = max(last - len(self.tokens), 0)
        self.tokens, self.contexts = np.pad(self.tokens, (0, grown)), np.pad(self.contexts, (0, grown))
        self.tokens[first:last] = ids
        self.contexts[first:last] = digests(self.tokens, ends, range(first, last))
        rows = np.array(digests(self.contexts, ends, range(first, last)), dtype=np.int64)
        return logits_of_hash(rows, self.vocab)


def hash_logits(vocab: int, ends_of: Callable[[int], Sequence[int]]) -> Callable[[Sequence[int]], np.ndarray]:
    """Returns the hash model as a function of a complete sequence.

    Args:
        vocab: Size of the vocabulary.
        ends_of: Returns the `visible_end` of each position of a sequence with a given length.
    """
    return lambda ids: HashMemory(vocab).forward(0, ids, ends_of(len(ids)))


def embedding(tokens: np.ndarray) -> np.ndarray:
    """Returns the embeddings, float64 [n, 2], of tokens, int64 [n]. All tokens have different ones."""
    return np.stack([tokens, tokens * 7 % 11 - 5], 1).astype(np.float64)


def stored(x: np.ndarray) -> np.ndarray:
    """Returns int64 [n] of embeddings [n, 2]: the token id, or a hash of an embedding that belongs to no token."""
    nearest = np.rint(x[:, 0]).astype(np.int64)
    found = nearest.copy()
    for n in np.flatnonzero(np.abs(embedding(nearest) - x).max(1) > 1e-6):
        found[n] = digest(np.rint(x[n] * 2**20))
    return found


class HashedEmbeddings:
    """The hash model as a function of embeddings; `Model` of the dmax oracle."""

    def __init__(self, vocab: int, block: int) -> None:
        self.vocab, self.block = vocab, block

    def embed(self, token: int) -> np.ndarray:
        return embedding(np.array([token]))[0]

    def look(self, rows: Sequence[np.ndarray]) -> np.ndarray:
        ends = block_causal_ends(len(rows), self.block)
        return HashMemory(self.vocab).forward(0, stored(np.stack(rows)).tolist(), ends)


def flat(pages: Tensor) -> Tensor:
    """Returns the values of all slots, one per token, [pages * page_size]."""
    return pages.view(-1)


class HashModel:
    """The hash model as a `runtime.models.base.Model` on a float64 pool."""

    kv_shapes = (KVShape(1, 1, 1),) * 2
    vocab_shard = None

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    def embed(self, tokens: Tensor) -> Tensor:
        return torch.from_numpy(embedding(tokens.numpy()))

    def forward(self, x: Tensor, batch: ForwardBatch, pool: KVPool) -> Tensor:
        (tokens_at, positions_at), (contexts_at, _) = ([flat(side) for side in pool.layer(i)] for i in range(2))
        size = batch.page_size
        alive = batch.slots >= 0
        tokens_at[batch.slots[alive]] = torch.from_numpy(stored(x.numpy())).double()[alive]
        positions_at[batch.slots[alive]] = batch.positions.double()[alive]
        tiles, seen = batch.query_tiles.tolist(), batch.visible_end.tolist()
        rows = [(request, row) for request, first, count in tiles for row in range(first, first + count)]
        assert [row for _, row in rows] == list(range(len(batch.tokens))), "tiles lack or reorder rows"
        positions, slots, pages = batch.positions.tolist(), batch.slots.tolist(), batch.page_table.tolist()

        seeing: dict[int, list[int]] = {}  # the rows of a request without padding
        for request, row in rows:
            if slots[row] >= 0:
                assert slots[row] == pages[request][positions[row] // size] * size + positions[row] % size
                seeing.setdefault(request, []).append(row)
        below: dict[int, Tensor] = {}  # slots of all positions that rows of a request attend to
        for request, own in seeing.items():
            at = torch.arange(max(seen[row] for row in own))
            below[request] = batch.page_table[request].long()[at // size] * size + at % size
            assert torch.equal(positions_at[below[request]], at.double()), "a row reads the K/V of another position"

        def hashed(side: Tensor, request: int) -> Tensor:
            """Returns, per row of the request, a hash of `side` at the positions that the row attends to."""
            own = seeing[request]
            values = side[below[request]].long().numpy()
            found = digests(values, [seen[row] for row in own], [positions[row] for row in own])
            return torch.tensor(found, dtype=torch.float64)

        for request, own in seeing.items():
            contexts_at[batch.slots[own]] = hashed(tokens_at, request)
        hashes = torch.zeros(len(rows), dtype=torch.float64)
        for request, own in seeing.items():
            hashes[own] = hashed(contexts_at, request)
        return -hashes[:, None]

    def final_hidden_states(self, left: Tensor) -> Tensor:
        return -left

    def lm_head(self, hidden: Tensor) -> Tensor:
        return torch.from_numpy(logits_of_hash(hidden[:, 0].long().numpy(), self.vocab_size))

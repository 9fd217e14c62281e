"""Training rows for block diffusion: every document as a clean copy and a noised copy, several packed into a row.

Of a document with prompt length P and blocks of B tokens, the noised copy holds the blocks from ``P // B`` on (the
first of them starts with the prompt's unaligned end, which is never noised), and the clean copy the blocks before the
last, which are what later blocks may see. After the turn's end the last block is filled with EOS: a block is always
decoded whole, so that filling is learnt too.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from runtime.demo.tasks import all_tasks, draw
from runtime.demo.tokenizer import ChatEncoder

BLOCK_SIZES = (8, 16, 32)
PAD_WEIGHT = 0.25  # loss weight of the EOS filling after the turn's end
KEEP_WEIGHT = 0.25  # loss weight of a right, visible token in a row that also has wrong ones
SYSTEMS = (
    "You are a helpful assistant.",
    "You are a friendly assistant.",
    "Answer briefly.",
    "Be polite.",
    "Help the user.",
    "You are Unmask, a small diffusion model.",
)


@dataclass(frozen=True)
class NoiseRecipe:
    """How answers are noised. Shares are of documents, but `all_masked`, which is of blocks."""

    all_masked: float = 0.2  # blocks that are masked whole, as at a block's first step
    hole: float = 0.1  # documents whose blocks are masked in one run, with what follows it visible
    corrupt: float = 0.25  # documents where visible answer tokens are also replaced, to be corrected
    corrupt_max: float = 0.3  # largest share of the visible tokens that is replaced
    block_weights: tuple[float, ...] = (0.2, 0.2, 0.6)  # of BLOCK_SIZES


@dataclass
class Batch:
    """Packed rows, each array [rows, length]; `index` lists the flat positions that have a loss."""

    ids: np.ndarray  # int64, model input
    positions: np.ndarray  # int64, position in the document
    blocks: np.ndarray  # int32, block number in the document
    docs: np.ndarray  # int32, document number in the row; -1 is padding
    noised: np.ndarray  # bool, belongs to a noised copy
    index: np.ndarray  # int64 [n], flat position of each loss
    targets: np.ndarray  # int64 [n]
    weights: np.ndarray  # float32 [n]


class Documents:
    """Endless encoded documents (prompt ids, answer ids with the turn's end) of one split, by task weight."""

    def __init__(self, encoder: ChatEncoder, weights: Mapping[str, float], seed: str, held_out: bool = False) -> None:
        tasks = all_tasks()
        unknown = set(weights) - set(tasks)
        if unknown:
            raise ValueError(f"unknown tasks {sorted(unknown)}; known: {', '.join(sorted(tasks))}")
        self._encoder = encoder
        self._rng = random.Random(f"documents/{seed}")
        self._names = list(weights)
        self._weights = list(weights.values())
        self._streams = {name: draw(tasks[name], f"train/{seed}", held_out) for name in weights}

    def __next__(self) -> tuple[list[int], list[int]]:
        sample = next(self._streams[self._rng.choices(self._names, self._weights)[0]])
        messages = list(sample.messages)
        if self._rng.random() < 0.04:
            messages.insert(0, {"role": "system", "content": self._rng.choice(SYSTEMS)})
        return self._encoder.prompt(messages), self._encoder.answer(sample.answer)

    def __iter__(self) -> Iterator[tuple[list[int], list[int]]]:
        return self


class Noiser:
    """Turns documents into the columns of a row: ids, positions, blocks, noised, targets, weights."""

    def __init__(self, encoder: ChatEncoder, recipe: NoiseRecipe, seed: int) -> None:
        self._eos, self._mask = encoder.eos, encoder.mask
        self._recipe = recipe
        self._rng = np.random.default_rng(seed)
        tokenizer = encoder.tokenizer
        self._digits = np.array([tokenizer.token_to_id(d) for d in "0123456789"])
        self._is_digit = np.zeros(tokenizer.get_vocab_size(), dtype=bool)
        self._is_digit[self._digits] = True
        self._ordinary = self._eos  # ids below the special ones

    def __call__(self, prompt: Sequence[int], answer: Sequence[int]) -> dict[str, np.ndarray]:
        rng, recipe = self._rng, self._recipe
        size = int(rng.choice(BLOCK_SIZES, p=recipe.block_weights))
        end = len(prompt) + len(answer)
        total = -(-end // size) * size
        clean = np.full(total, self._eos, dtype=np.int64)
        clean[:end] = [*prompt, *answer]
        positions = np.arange(total)
        free = positions >= len(prompt)
        masked, wrong = self._noise(clean, free, size)
        noised = np.where(masked, self._mask, np.where(wrong >= 0, wrong, clean))
        weights = np.where(masked | (wrong >= 0), np.where(positions < end, 1.0, PAD_WEIGHT), 0.0)
        if (wrong >= 0).any():
            weights = np.where(free & (weights == 0), KEEP_WEIGHT * np.where(positions < end, 1.0, PAD_WEIGHT), weights)
        first, last = len(prompt) // size * size, total - size
        return {
            "ids": np.concatenate((clean[:last], noised[first:])),
            "positions": np.concatenate((positions[:last], positions[first:])),
            "blocks": np.concatenate((positions[:last], positions[first:])) // size,
            "noised": np.concatenate((np.zeros(last, dtype=bool), np.ones(total - first, dtype=bool))),
            "targets": np.concatenate((clean[:last], clean[first:])),
            "weights": np.concatenate((np.zeros(last), weights[first:])),
        }

    def _noise(self, clean: np.ndarray, free: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
        """Which free positions are masked, and the wrong id where a visible one is replaced (-1: none)."""
        rng, recipe, total = self._rng, self._recipe, len(clean)
        blocks = total // size
        ratio = np.where(rng.random(blocks) < recipe.all_masked, 1.0, rng.random(blocks))
        masked = free & (rng.random(total) < np.repeat(ratio, size))
        if rng.random() < recipe.hole:
            ends = np.sort(rng.integers(0, size + 1, (blocks, 2)), axis=1)
            offset = np.arange(size)
            masked = free & ((offset >= ends[:, :1]) & (offset < np.maximum(ends[:, 1:], ends[:, :1] + 1))).ravel()
        wrong = np.full(total, -1, dtype=np.int64)
        if rng.random() < recipe.corrupt:
            hit = np.flatnonzero(free & ~masked & (rng.random(total) < rng.random() * recipe.corrupt_max))
            likely = np.where(
                self._is_digit[clean[hit]],
                self._digits[rng.integers(0, 10, len(hit))],
                rng.integers(0, self._ordinary, len(hit)),
            )
            own = clean[rng.choice(np.flatnonzero(free), len(hit))]  # a token of the same answer
            chosen = np.where(rng.random(len(hit)) < 0.5, own, likely)
            wrong[hit] = np.where(chosen == clean[hit], -1, chosen)
        return masked, wrong


def pack(
    documents: Iterator[tuple[list[int], list[int]]],
    noiser: Noiser,
    rows: int,
    length: int,
    eos: int,
    open_rows: int = 12,
) -> Iterator[Batch]:
    """Batches of `rows` rows of `length` tokens. A document longer than a row is an error."""
    waiting: list[list[dict[str, np.ndarray]]] = []
    used: list[int] = []
    closed: list[list[dict[str, np.ndarray]]] = []
    for prompt, answer in documents:
        columns = noiser(prompt, answer)
        need = len(columns["ids"])
        if need > length:
            raise ValueError(f"a document needs {need} tokens, a row holds {length}: raise the row length")
        place = next((i for i, n in enumerate(used) if n + need <= length), None)
        if place is None:
            if len(waiting) == open_rows:
                full = max(range(open_rows), key=used.__getitem__)
                closed.append(waiting.pop(full))
                used.pop(full)
            waiting.append([])
            used.append(0)
            place = len(waiting) - 1
        waiting[place].append(columns)
        used[place] += need
        if len(closed) == rows:
            yield _batch(closed, length, eos)
            closed = []


def _batch(rows: list[list[dict[str, np.ndarray]]], length: int, eos: int) -> Batch:
    shape = (len(rows), length)
    ids = np.full(shape, eos, dtype=np.int64)
    positions, targets = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
    blocks, docs = np.zeros(shape, dtype=np.int32), np.full(shape, -1, dtype=np.int32)
    noised, weights = np.zeros(shape, dtype=bool), np.zeros(shape, dtype=np.float32)
    for r, documents in enumerate(rows):
        at = 0
        for d, columns in enumerate(documents):
            stop = at + len(columns["ids"])
            ids[r, at:stop], positions[r, at:stop] = columns["ids"], columns["positions"]
            blocks[r, at:stop], docs[r, at:stop] = columns["blocks"], d
            noised[r, at:stop], weights[r, at:stop] = columns["noised"], columns["weights"]
            targets[r, at:stop] = columns["targets"]
            at = stop
    index = np.flatnonzero(weights.ravel())
    return Batch(ids, positions, blocks, docs, noised, index, targets.ravel()[index], weights.ravel()[index])

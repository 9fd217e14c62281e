"""Training rows for block diffusion: a clean copy and a noised copy of each document, packed into rows.

For a prompt of P tokens and blocks of B tokens, the noised copy has the blocks from ``P // B`` on. The first of them
begins with the unaligned end of the prompt, which is never noised. The clean copy has all blocks but the last, which
later blocks attend to. After the end of the turn the last block is padded with EOS. Full blocks are decoded, so the
model learns this padding too.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from training.demo.systems import system_turn
from training.demo.tasks import all_tasks, draw
from training.demo.tokenizer import ChatEncoder

BLOCK_SIZES = (8, 16, 32)
PAD_WEIGHT = 0.25  # loss weight of the EOS padding after the end of the turn
KEEP_WEIGHT = 0.25  # loss weight of a correct, visible token in a document that also has wrong ones
CONTEXT = 4096  # maximum number of tokens of a conversation
MAX_MISSED = 20  # consecutive documents that no row can hold
TOGETHER = 160  # tokens at the end of a prompt that stay together
SYSTEM_FRACTION = 0.08  # of documents without a system message that get one


@dataclass(frozen=True)
class NoiseRecipe:
    """How answers are noised. Fractions are of documents, except `all_masked`, which is of blocks."""

    all_masked: float = 0.2  # fully masked blocks, as at a block's first step
    hole: float = 0.1  # documents with one masked run per block, followed by visible tokens
    corrupt: float = 0.25  # documents where visible answer tokens are also replaced, to be corrected
    corrupt_max: float = 0.3  # largest fraction of the visible tokens that is replaced
    block_weights: tuple[float, ...] = (0.15, 0.15, 0.7)  # of BLOCK_SIZES
    far: float = 0.5  # of the documents with a long prompt: its beginning is moved away, up to the context length


@dataclass
class Batch:
    """Packed rows, each array [rows, length]. `index` has the flat positions with a loss."""

    ids: np.ndarray  # int64, model input
    positions: np.ndarray  # int64, position in the document
    blocks: np.ndarray  # int32, block number in the document
    docs: np.ndarray  # int32, document number in the row; -1 is padding
    noised: np.ndarray  # bool, belongs to a noised copy
    index: np.ndarray  # int64 [n], flat position of each loss
    targets: np.ndarray  # int64 [n]
    weights: np.ndarray  # float32 [n]


class Documents:
    """Endless encoded documents of one split by task weight: prompt ids, and answer ids with the end of the turn."""

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
        if self._rng.random() < SYSTEM_FRACTION and messages[0]["role"] != "system":
            messages.insert(0, {"role": "system", "content": system_turn(self._rng)})
        return self._encoder.prompt(messages), self._encoder.answer(sample.answer)

    def __iter__(self) -> Iterator[tuple[list[int], list[int]]]:
        return self


@dataclass
class Layout:
    """Packed documents before noise: flat arrays of all rows' tokens, and properties of the documents.

    `doc` and `segment` number the documents and the noised blocks of the batch; -1 is padding, or no noised block.
    """

    ids: np.ndarray  # int64, clean
    positions: np.ndarray  # int64
    blocks: np.ndarray  # int32
    doc: np.ndarray  # int32
    segment: np.ndarray  # int32
    lengths: np.ndarray  # int64 [documents, 2]: prompt, prompt and answer
    sizes: np.ndarray  # int64 [documents], block size
    segments: int


class Packer:
    """Packs documents into rows of `length` tokens, with `open_rows` rows at a time.

    A document takes the clean copy of all blocks but the last, then the noised copy of the blocks from the end of its
    prompt on. A document that is too long for its block size gets the smallest one.
    """

    def __init__(self, eos: int, length: int, open_rows: int = 12) -> None:
        self._eos, self._length, self._open_rows = eos, length, open_rows
        self._open: list[tuple[int, list[tuple[list[int], int, int]]]] = []  # (used, [(ids, prompt length, size)])
        self._closed: list[list[tuple[list[int], int, int]]] = []

    def add(self, prompt: list[int], answer: list[int], size: int) -> bool:
        """Adds a document. Returns False if no row can hold it."""
        ids = prompt + answer
        need = self._need(ids, prompt, size)
        if need > self._length:  # smaller blocks duplicate less of a document
            size = BLOCK_SIZES[0]
            need = self._need(ids, prompt, size)
        if need > self._length:
            return False
        document = (ids, len(prompt), size)
        for i, (used, documents) in enumerate(self._open):
            if used + need <= self._length:
                documents.append(document)
                self._open[i] = used + need, documents
                return True
        if len(self._open) == self._open_rows:
            fullest = max(range(self._open_rows), key=lambda i: self._open[i][0])
            self._closed.append(self._open.pop(fullest)[1])
        self._open.append((need, [document]))
        return True

    @staticmethod
    def _need(ids: list[int], prompt: list[int], size: int) -> int:
        total = -(-len(ids) // size) * size
        return total - size + total - len(prompt) // size * size

    def take(self, rows: int) -> Layout | None:
        """Returns the layout of `rows` full rows; None if there are fewer."""
        if len(self._closed) < rows:
            return None
        taken, self._closed = self._closed[:rows], self._closed[rows:]
        ids: list[int] = []
        positions: list[int] = []
        blocks: list[int] = []
        doc: list[int] = []
        segment: list[int] = []
        lengths, sizes = [], []
        segments = 0
        for r, documents in enumerate(taken, start=1):
            for known, prompt, size in documents:
                total = -(-len(known) // size) * size
                first, last = prompt // size * size, total - size
                padded = known + [self._eos] * (total - len(known))
                numbers = range(total)
                ids += padded[:last] + padded[first:]
                positions += [*numbers[:last], *numbers[first:]]
                block = [p // size for p in numbers]
                blocks += block[:last] + block[first:]
                doc += [len(sizes)] * (last + total - first)
                segment += [-1] * last + [segments + b - block[first] for b in block[first:]]
                segments += (total - first) // size
                lengths.append((prompt, len(known)))
                sizes.append(size)
            padding = r * self._length - len(ids)
            ids += [self._eos] * padding
            for column in (positions, blocks):
                column += [0] * padding
            for column in (doc, segment):
                column += [-1] * padding
        return Layout(
            np.array(ids),
            np.array(positions),
            np.array(blocks, dtype=np.int32),
            np.array(doc, dtype=np.int32),
            np.array(segment, dtype=np.int32),
            np.array(lengths),
            np.array(sizes),
            segments,
        )


class Noiser:
    """Masks and replaces answer tokens of a layout. The seed determines the result."""

    def __init__(self, encoder: ChatEncoder, recipe: NoiseRecipe, seed: int) -> None:
        self._mask, self._ordinary = encoder.mask, encoder.eos  # ids below the special ones are ordinary
        self._recipe = recipe
        self._rng = np.random.default_rng(seed)
        self._digits = np.array([encoder.tokenizer.token_to_id(d) for d in "0123456789"])
        self._is_digit = np.zeros(encoder.tokenizer.get_vocab_size(), dtype=bool)
        self._is_digit[self._digits] = True
        self._sizes: list[int] = []
        self._next = 0

    def block_size(self) -> int:
        """Draws one of BLOCK_SIZES by the recipe's weights."""
        if self._next == len(self._sizes):
            self._sizes = self._rng.choice(BLOCK_SIZES, 4096, p=self._recipe.block_weights).tolist()
            self._next = 0
        self._next += 1
        return self._sizes[self._next - 1]

    def __call__(self, layout: Layout, length: int) -> Batch:
        """Returns rows of `length` tokens with noise and loss weights."""
        noised = layout.segment >= 0
        free = noised & (layout.positions >= layout.lengths[layout.doc, 0])
        masked = self._masked(layout, free)
        wrong = self._wrong(layout, free, masked)
        replaced = wrong != layout.ids
        worth = np.where(layout.positions < layout.lengths[layout.doc, 1], 1.0, PAD_WEIGHT)
        touched = np.bincount(layout.doc[replaced], minlength=len(layout.sizes)) > 0
        visible = free & ~masked & ~replaced & touched[layout.doc]
        weights = np.where(masked | replaced, worth, np.where(visible, KEEP_WEIGHT * worth, 0.0)).astype(np.float32)
        index = np.flatnonzero(weights)
        starts = np.maximum.accumulate(np.where(np.arange(len(layout.doc)) % length == 0, layout.doc, -1))
        in_row = np.where(layout.doc >= 0, layout.doc - starts, -1)

        def rows(column: np.ndarray) -> np.ndarray:
            return column.reshape(-1, length)

        return Batch(
            rows(np.where(masked, self._mask, wrong)),
            rows(layout.positions + self._gaps(layout)),
            rows(layout.blocks),
            rows(in_row.astype(np.int32)),
            rows(noised),
            index,
            layout.ids[index],
            weights[index],
        )

    def _gaps(self, layout: Layout) -> np.ndarray:
        """Returns offsets of positions that move the beginning of long prompts away, [tokens].

        An offset is a multiple of the largest block and begins at such a boundary, so that blocks stay the same. The
        last tokens of the prompt, with the question, stay together.
        """
        rng, largest = self._rng, BLOCK_SIZES[-1]
        boundaries = (layout.lengths[:, 0] - TOGETHER) // largest
        far = (boundaries > 0) & (rng.random(len(boundaries)) < self._recipe.far)
        start = largest * (1 + (rng.random(len(boundaries)) * boundaries).astype(np.int64))
        free_blocks = (CONTEXT - layout.lengths[:, 1]) // largest - 1
        gap = largest * (far * rng.random(len(boundaries)) * np.maximum(free_blocks, 0)).astype(np.int64)
        return np.where((layout.doc >= 0) & (layout.positions >= start[layout.doc]), gap[layout.doc], 0)

    def _masked(self, layout: Layout, free: np.ndarray) -> np.ndarray:
        rng, recipe = self._rng, self._recipe
        ratio = np.where(rng.random(layout.segments) < recipe.all_masked, 1.0, rng.random(layout.segments))
        scattered = rng.random(len(free)) < ratio[layout.segment]
        size = layout.sizes[layout.doc]
        ends = np.sort(rng.random((layout.segments, 2)), axis=1)[layout.segment] * size[:, None]
        offset = layout.positions % size
        low = np.floor(ends[:, 0])
        run = (offset >= low) & (offset < np.maximum(np.ceil(ends[:, 1]), low + 1))
        of_hole = (rng.random(len(layout.sizes)) < recipe.hole)[layout.doc]
        return free & np.where(of_hole, run, scattered)

    def _wrong(self, layout: Layout, free: np.ndarray, masked: np.ndarray) -> np.ndarray:
        """Returns the ids with some visible answer tokens replaced, in randomly chosen documents."""
        rng, recipe, documents = self._rng, self._recipe, len(layout.sizes)
        rate = (rng.random(documents) < recipe.corrupt) * rng.random(documents) * recipe.corrupt_max
        hit = np.flatnonzero(free & ~masked & (rng.random(len(free)) < rate[layout.doc]))
        ids = layout.ids[hit]
        digits = self._digits[rng.integers(0, 10, len(hit))]
        likely = np.where(self._is_digit[ids], digits, rng.integers(0, self._ordinary, len(hit)))
        candidates = np.flatnonzero(free)
        counts = np.bincount(layout.doc[candidates], minlength=documents)
        starts = np.cumsum(counts) - counts
        of = layout.doc[hit]
        own = layout.ids[candidates[starts[of] + (rng.random(len(hit)) * counts[of]).astype(np.int64)]]
        wrong = layout.ids.copy()
        wrong[hit] = np.where(rng.random(len(hit)) < 0.5, own, likely)
        return wrong


def batches(
    documents: Iterator[tuple[list[int], list[int]]], noiser: Noiser, rows: int, length: int, eos: int
) -> Iterator[Batch]:
    """Yields endless batches of `rows` rows of `length` tokens.

    A document that no row can hold is skipped. Raises ValueError after MAX_MISSED of them in sequence.
    """
    packer = Packer(eos, length)
    missed = 0  # consecutive ones
    for prompt, answer in documents:
        missed = 0 if packer.add(prompt, answer, noiser.block_size()) else missed + 1
        if missed == MAX_MISSED:
            raise ValueError(
                f"{missed} documents one after the other, the last of {len(prompt) + len(answer)} tokens, need more "
                f"than a row's {length}: raise row_length in presets.py"
            )
        layout = packer.take(rows)
        if layout is not None:
            yield noiser(layout, length)

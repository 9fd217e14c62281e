"""Batches for training, from this process or worker processes. Imports no torch, so that workers start quickly."""

from __future__ import annotations

import multiprocessing as mp
import queue
from collections.abc import Callable, Iterator
from pathlib import Path

from tokenizers import Tokenizer

from training.demo.data import Batch, Documents, Noiser, batches
from training.demo.presets import Preset
from training.demo.tokenizer import ChatEncoder

Source = Callable[[str], Iterator[Batch]]  # endless batches by seed; pickled for workers
_PREFETCHED = 3  # batches that a worker prefetches


def local_batches(preset: Preset, tokenizer_file: Path, seed: str, held_out: bool = False) -> Iterator[Batch]:
    """Yields endless batches of a preset's tasks, determined by the seed."""
    encoder = ChatEncoder(Tokenizer.from_file(str(tokenizer_file)))
    documents = Documents(encoder, preset.tasks, seed, held_out)
    return batches(documents, Noiser(encoder, preset.noise, seeded(seed)), preset.rows, preset.row_length, encoder.eos)


def seeded(text: str) -> int:
    """Returns a seed of numpy's generator."""
    return int.from_bytes(text.encode(), "big") % 2**63


def _work(source: Source, seed: str, out: mp.Queue[Batch]) -> None:
    for batch in source(seed):
        out.put(batch)


class Feed:
    """Batches of all workers, round-robin, so that the order does not depend on their speed."""

    def __init__(self, source: Source, workers: int, seed: str) -> None:
        self._local = source(seed) if workers == 0 else None
        self._queues: list[mp.Queue[Batch]] = []
        self._processes: list[mp.process.BaseProcess] = []
        self._turn = 0
        context = mp.get_context("spawn")
        for worker in range(workers):
            made: mp.Queue[Batch] = context.Queue(_PREFETCHED)
            process = context.Process(target=_work, args=(source, f"{seed}/{worker}", made), daemon=True)
            process.start()
            self._queues.append(made)
            self._processes.append(process)

    def __next__(self) -> Batch:
        if self._local is not None:
            return next(self._local)
        at = self._turn % len(self._queues)
        self._turn += 1
        while True:
            try:
                return self._queues[at].get(timeout=5)
            except queue.Empty:
                if not self._processes[at].is_alive():
                    raise RuntimeError(f"training worker {at} ended; its own error is above") from None

    def close(self) -> None:
        for process in self._processes:
            process.terminate()
            process.join()

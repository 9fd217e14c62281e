"""Prefetches batches to the device."""

from __future__ import annotations

import dataclasses
import queue
import threading

import torch

from training.demo.data import Batch
from training.demo.feed import Feed

Tensors = dict[str, torch.Tensor]
_DEPTH = 6


def to_device(batch: Batch, device: torch.device) -> Tensors:
    """Converts the batch's arrays to tensors on the device."""
    tensors = {f.name: torch.from_numpy(getattr(batch, f.name)) for f in dataclasses.fields(batch)}
    if device.type != "cuda":
        return tensors
    return {name: t.pin_memory().to(device, non_blocking=True) for name, t in tensors.items()}


class Prefetcher:
    """Batches of a feed on the device. On a GPU, a thread receives and copies them during the training."""

    def __init__(self, feed: Feed, device: torch.device) -> None:
        self._feed, self._device = feed, device
        self._ready: queue.Queue[Tensors | BaseException] = queue.Queue(_DEPTH)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._fetch, daemon=True) if device.type == "cuda" else None
        if self._thread is not None:
            self._thread.start()

    def _fetch(self) -> None:
        try:
            if self._device.index is not None:  # per thread; pinning would use memory of device 0 otherwise
                torch.cuda.set_device(self._device)
            while not self._closed.is_set():
                self._put(to_device(next(self._feed), self._device))
        except BaseException as error:
            self._put(error)

    def _put(self, item: Tensors | BaseException) -> None:
        while not self._closed.is_set():
            try:
                return self._ready.put(item, timeout=1)
            except queue.Full:
                continue

    def __next__(self) -> Tensors:
        if self._thread is None:
            return to_device(next(self._feed), self._device)
        item = self._ready.get()
        if isinstance(item, BaseException):
            raise item
        return item

    def close(self) -> None:
        self._closed.set()
        if self._thread is not None:
            self._thread.join()
        self._feed.close()

"""Reads tensors of safetensors files ahead of the loader, and copies them to the GPU through pinned buffers.

A shard is read sequentially by one thread, so that a slow disk has no additional seeks. Several shards are read at the
same time.
"""

from __future__ import annotations

import json
import os
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from runtime.errors import ConfigError

NUM_THREADS = 8
BUFFER_BYTES = 16 << 20  # size of a pinned buffer; each thread has two
SEGMENT_BYTES = 32 << 20  # largest segment of several tensors
NUM_PREFETCHED = 3  # maximum segments per thread on the device
DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn, "I64": torch.int64, "I32": torch.int32, "I8": torch.int8, "U8": torch.uint8,
}  # fmt: skip


class TensorRange(NamedTuple):
    """Byte range [start, stop) of a tensor in its file, and the tensor's dtype and shape."""

    name: str
    start: int
    stop: int
    dtype: torch.dtype
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Shard:
    """Tensors to read from one file.

    Attributes:
        path: path in messages.
        descriptor: the open file.
        tensors: the tensors, in the order of the file.
    """

    path: str
    descriptor: int
    tensors: Sequence[TensorRange]


@dataclass(frozen=True)
class _Segment:
    """Consecutive tensors of a shard on the device, and the function that frees its slot."""

    tensors: Sequence[TensorRange]
    data: torch.Tensor
    copied: torch.cuda.Event | None
    release: Callable[[], None]


class _Stopped(Exception):
    """The loader needs no more tensors."""


def tensor_ranges(descriptor: int, path: str) -> dict[str, TensorRange]:
    """Reads the header of a safetensors file that the library has validated.

    Args:
        descriptor: The open file.
        path: Its path in messages.

    Returns:
        Name -> range of each tensor whose dtype torch has.

    Raises:
        ConfigError: The file cannot be read.
    """
    length = int.from_bytes(_read(descriptor, path, 8, 0), "little")
    header: dict[str, Any] = json.loads(_read(descriptor, path, length, 8))
    first = 8 + length
    found = {}
    for name, entry in header.items():
        if name != "__metadata__" and entry["dtype"] in DTYPES:
            start, stop = (first + offset for offset in entry["data_offsets"])
            found[name] = TensorRange(name, start, stop, DTYPES[entry["dtype"]], tuple(entry["shape"]))
    return found


def segments(tensors: Sequence[TensorRange]) -> list[list[TensorRange]]:
    """Groups tensors, in the order of the file, into contiguous segments of at most SEGMENT_BYTES; a larger tensor has
    a segment of its own.
    """
    groups: list[list[TensorRange]] = []
    for tensor in tensors:
        if groups and groups[-1][-1].stop == tensor.start and tensor.stop - groups[-1][0].start <= SEGMENT_BYTES:
            groups[-1].append(tensor)
        else:
            groups.append([tensor])
    return groups


@contextmanager
def stream_tensors(
    shards: Sequence[Shard], device: torch.device
) -> Iterator[Iterator[tuple[TensorRange, torch.Tensor]]]:
    """Yields an iterator over all tensors of `shards`, on `device`. Tensors of one shard keep their order.

    A tensor may be used until the next one is requested; later its memory is reused after the kernels that were
    launched on the current stream.

    Raises:
        ConfigError: A file cannot be read, or is shorter than its header states.
    """
    reader = _Reader(shards, device)
    try:
        yield reader.tensors()
    finally:
        reader.stop()


class _Reader:
    """Threads that read shards, and the queue of segments that they copied to the device."""

    def __init__(self, shards: Sequence[Shard], device: torch.device) -> None:
        self._device = device
        segmented = [(shard, segments(shard.tensors)) for shard in shards]
        self._shards = iter(segmented)
        self._next_shard = threading.Lock()
        self._num_segments = sum(len(groups) for _, groups in segmented)
        self._ready: queue.SimpleQueue[_Segment | BaseException] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._slots = [threading.Semaphore(NUM_PREFETCHED) for _ in range(min(NUM_THREADS, len(shards)))]
        self._threads = [
            threading.Thread(target=self._run, args=(slots,), name="read-weights", daemon=True) for slots in self._slots
        ]
        for thread in self._threads:
            thread.start()

    def tensors(self) -> Iterator[tuple[TensorRange, torch.Tensor]]:
        for _ in range(self._num_segments):
            segment = self._ready.get()
            if isinstance(segment, BaseException):
                raise segment
            if segment.copied is not None:
                stream = torch.cuda.current_stream(self._device)
                stream.wait_event(segment.copied)
                segment.data.record_stream(stream)
            start = segment.tensors[0].start
            for tensor in segment.tensors:
                data = segment.data[tensor.start - start : tensor.stop - start]
                if data.storage_offset() % tensor.dtype.itemsize:
                    data = data.clone()
                yield tensor, data.view(tensor.dtype).view(tensor.shape)
            segment.release()

    def stop(self) -> None:
        """Ends the threads, even if tensors are left to read."""
        self._stopping.set()
        for slots in self._slots:
            slots.release(NUM_PREFETCHED)
        for thread in self._threads:
            thread.join()

    def _run(self, slots: threading.Semaphore) -> None:
        try:
            copier = _Copier(self._device)
            while (taken := self._take_shard()) is not None:
                shard, groups = taken
                for group in groups:
                    slots.acquire()
                    if self._stopping.is_set():
                        raise _Stopped
                    data, copied = copier.copy(shard, group[0].start, group[-1].stop)
                    self._ready.put(_Segment(group, data, copied, slots.release))
        except _Stopped:
            pass
        except BaseException as error:  # raised in the thread that loads
            self._ready.put(error)

    def _take_shard(self) -> tuple[Shard, list[list[TensorRange]]] | None:
        with self._next_shard:
            return next(self._shards, None)


class _Copier:
    """Copies bytes of files to the device through two buffers in turn: one is read while the other one is copied."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            torch.cuda.set_device(device)  # per thread
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        pinned = self._stream is not None
        self._buffers = [torch.empty(BUFFER_BYTES, dtype=torch.uint8, pin_memory=pinned) for _ in range(2)]
        self._copied: list[torch.cuda.Event | None] = [None, None]

    def copy(self, shard: Shard, start: int, stop: int) -> tuple[torch.Tensor, torch.cuda.Event | None]:
        """Returns bytes [start, stop) of the shard on the device, and the event after which they are there."""
        with torch.cuda.stream(self._stream):
            data = torch.empty(stop - start, dtype=torch.uint8, device=self._device)
            for number, first in enumerate(range(start, stop, BUFFER_BYTES)):
                which = number % 2
                if (copied := self._copied[which]) is not None:
                    copied.synchronize()
                part = self._buffers[which][: min(BUFFER_BYTES, stop - first)]
                _read_into(shard.descriptor, shard.path, memoryview(part.numpy()), first)  # type: ignore[arg-type]
                data[first - start : first - start + len(part)].copy_(part, non_blocking=True)
                self._copied[which] = self._record()
        return data, self._record()

    def _record(self) -> torch.cuda.Event | None:
        return None if self._stream is None else self._stream.record_event()


def _read(descriptor: int, path: str, length: int, offset: int) -> bytes:
    data = bytearray(length)
    _read_into(descriptor, path, memoryview(data), offset)
    return bytes(data)


def _read_into(descriptor: int, path: str, buffer: memoryview, offset: int) -> None:
    """Fills `buffer` from the file at `offset`. Raises ConfigError if the file ends before."""
    done = 0
    while done < len(buffer):
        try:
            count = os.preadv(descriptor, [buffer[done:]], offset + done)
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
        if count == 0:
            raise ConfigError(f"{path} is shorter than its header states; download the checkpoint again")
        done += count

"""Transfers many small arrays between host and device in one copy.

On a GPU the arrays are packed into one pinned buffer, which is copied at once; views of the copy are the tensors. On a
CPU nothing is copied: the tensors share the memory of the arrays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

ALIGNMENT = 16  # bytes, so that vectorized loads of each array are aligned

Arrays = dict[str, npt.NDArray[np.generic]]
ArraySpecs = Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]]
_TORCH = {np.dtype(name): getattr(torch, name) for name in ("int64", "int32", "int8", "bool", "float64", "float32")}
_NUMPY = {there: here for here, there in _TORCH.items()}


class BufferLayout:
    """Offsets of arrays that are packed into one buffer."""

    def __init__(self, sizes: ArraySpecs) -> None:
        self.set_specs(sizes)

    def set_specs(self, sizes: ArraySpecs) -> None:
        """Computes the layout of arrays with the dtypes and shapes `sizes`."""
        self.specs = sizes
        self.offsets: dict[str, tuple[int, int]] = {}
        self.nbytes = 0
        for name, (dtype, shape) in sizes.items():
            length = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
            self.offsets[name] = (self.nbytes, self.nbytes + length)
            self.nbytes += -(-length // ALIGNMENT) * ALIGNMENT

    def on_host(self, flat: npt.NDArray[np.uint8]) -> dict[str, npt.NDArray[Any]]:
        """Views of the arrays in `flat`."""
        return {
            name: flat[first:end].view(self.specs[name][0]).reshape(self.specs[name][1])
            for name, (first, end) in self.offsets.items()
        }

    def on_device(self, flat: torch.Tensor) -> dict[str, torch.Tensor]:
        """Views of the arrays in `flat`, uint8."""
        return {
            name: flat[first:end].view(_TORCH[self.specs[name][0]]).view(self.specs[name][1])
            for name, (first, end) in self.offsets.items()
        }


def array_specs(arrays: Arrays) -> ArraySpecs:
    return {name: (array.dtype, array.shape) for name, array in arrays.items()}


def tensor_specs(tensors: Mapping[str, torch.Tensor]) -> ArraySpecs:
    return {name: (_NUMPY[tensor.dtype], tuple(tensor.shape)) for name, tensor in tensors.items()}


def pack(tensors: Mapping[str, torch.Tensor], layout: BufferLayout, flat: torch.Tensor) -> None:
    """Writes the tensors into `flat`, uint8 [layout.nbytes]."""
    for name, view in layout.on_device(flat).items():
        view.copy_(tensors[name])


def make_timing_event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


class PinnedBuffer:
    """Pinned host memory for transfers in one direction, which grows on demand. A transfer waits for the previous.

    Attributes:
        done: the end of the last transfer. Each transfer has an event of its own. None: not a CUDA device.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.pinned = torch.empty(0, dtype=torch.uint8)
        self.done = make_timing_event() if device.type == "cuda" else None

    def reserve(self, nbytes: int) -> torch.Tensor:
        """Returns memory that no transfer uses, at least `nbytes` of it."""
        self.wait()
        if len(self.pinned) < nbytes:
            self.pinned = torch.zeros(2 * nbytes, dtype=torch.uint8, pin_memory=self.done is not None)
        return self.pinned[:nbytes]

    def record(self) -> None:
        """Marks the memory as in use until the last transfer is done."""
        if self.done is not None:
            self.done = make_timing_event()
            self.done.record()

    def wait(self) -> None:
        if self.done is not None:
            self.done.synchronize()

    def to_device(self, arrays: Arrays) -> dict[str, torch.Tensor]:
        """Returns the arrays as tensors on the device, transferred in one copy."""
        if self.done is None:
            return {name: torch.from_numpy(array) for name, array in arrays.items()}
        layout = BufferLayout(array_specs(arrays))
        pinned = self.reserve(layout.nbytes)
        for name, view in layout.on_host(pinned.numpy()).items():
            view[...] = arrays[name]
        flat = pinned.to(self.device, non_blocking=True)
        self.record()
        return layout.on_device(flat)

    def to_host(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, npt.NDArray[Any]]:
        """Returns the tensors as arrays on the host, transferred in one copy. Blocks until the device is done."""
        if self.done is None:
            return {name: tensor.numpy() for name, tensor in tensors.items()}
        layout = BufferLayout(tensor_specs(tensors))
        flat = torch.empty(layout.nbytes, dtype=torch.uint8, device=self.device)
        pack(tensors, layout, flat)
        pinned = self.reserve(layout.nbytes)
        pinned.copy_(flat, non_blocking=True)
        self.record()
        self.wait()
        return layout.on_host(pinned.numpy().copy())


class StaticBuffer:
    """Host and device memory at constant addresses, for inputs or outputs of CUDA graphs.

    Attributes:
        pending: an upload may still be in progress, as no later download of the same stream has completed.
    """

    def __init__(self, device: torch.device, nbytes: int) -> None:
        self.pinned = PinnedBuffer(device)
        self.host = self.pinned.reserve(nbytes)
        self.numbers = self.host.numpy()
        self.device = torch.zeros(nbytes, dtype=torch.uint8, device=device)
        self.pending = False

    def __len__(self) -> int:
        return len(self.device)

    def wait(self) -> None:
        """Waits until the last upload is complete."""
        if self.pending and self.pinned.done is not None:
            torch.cuda.synchronize(self.device.device)
        self.pending = False

    def slice(self, nbytes: int) -> BufferView:
        return BufferView(self, self.host[:nbytes], self.device[:nbytes])


@dataclass(frozen=True)
class BufferView:
    """The first bytes of a `StaticBuffer`, on the host and on the device."""

    buffer: StaticBuffer
    host: torch.Tensor
    device: torch.Tensor

    def upload(self) -> None:
        self.device.copy_(self.host, non_blocking=True)
        self.buffer.pending = True

    def download(self) -> None:
        """Copies the device memory to the host. The copy is complete after `wait` of the buffer's `pinned`."""
        self.host.copy_(self.device, non_blocking=True)
        self.buffer.pinned.record()

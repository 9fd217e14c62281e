"""From the host to the device and back: many small arrays as one transfer.

On a GPU arrays are laid end to end in memory that the device can read by itself, copied at once, and seen there through
views. On a CPU there is nothing to copy: tensors are the arrays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from runtime.worker.input_batch import Arrays

ALIGNMENT = 16  # bytes: no number of any array straddles what a kernel loads at once

Kinds = Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]]
_TORCH = {
    np.dtype(kind): getattr(torch, name)
    for kind, name in ((np.int64, "int64"), (np.int32, "int32"), (np.int8, "int8"), (np.bool_, "bool"))
} | {np.dtype(np.float64): torch.float64, np.dtype(np.float32): torch.float32}
_NUMPY = {there: here for here, there in _TORCH.items()}


class Layout:
    """Where each of some arrays lies in one run of bytes."""

    def __init__(self, sizes: Kinds) -> None:
        self.place(sizes)

    def place(self, sizes: Kinds) -> None:
        """Of the arrays `sizes` instead."""
        self.sizes = sizes
        self.places: dict[str, tuple[int, int]] = {}
        self.nbytes = 0
        for name, (dtype, shape) in sizes.items():
            length = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
            self.places[name] = (self.nbytes, self.nbytes + length)
            self.nbytes += -(-length // ALIGNMENT) * ALIGNMENT

    def on_host(self, flat: npt.NDArray[np.uint8]) -> dict[str, npt.NDArray[Any]]:
        """Views of the arrays in `flat`."""
        return {
            name: flat[first:end].view(self.sizes[name][0]).reshape(self.sizes[name][1])
            for name, (first, end) in self.places.items()
        }

    def on_device(self, flat: torch.Tensor) -> dict[str, torch.Tensor]:
        """Views of the arrays in `flat`, uint8."""
        return {
            name: flat[first:end].view(_TORCH[self.sizes[name][0]]).view(self.sizes[name][1])
            for name, (first, end) in self.places.items()
        }


def sizes_of(arrays: Arrays) -> Kinds:
    return {name: (array.dtype, array.shape) for name, array in arrays.items()}


def sizes_on_device(tensors: Mapping[str, torch.Tensor]) -> Kinds:
    return {name: (_NUMPY[tensor.dtype], tuple(tensor.shape)) for name, tensor in tensors.items()}


def pack(tensors: Mapping[str, torch.Tensor], layout: Layout, flat: torch.Tensor) -> None:
    """Write the tensors into `flat` as `layout` says."""
    for name, view in layout.on_device(flat).items():
        view.copy_(tensors[name])


class Staging:
    """Memory of the host for transfers one way, which grows. One transfer at a time: the next waits for it."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.pinned = torch.empty(0, dtype=torch.uint8)
        self.done: torch.cuda.Event | None = None
        if device.type == "cuda":
            self.done = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]

    def reserve(self, nbytes: int) -> torch.Tensor:
        """Memory that no transfer uses any more."""
        self.wait()
        if len(self.pinned) < nbytes:
            self.pinned = torch.zeros(2 * nbytes, dtype=torch.uint8, pin_memory=self.done is not None)
        return self.pinned[:nbytes]

    def used(self) -> None:
        """The transfer that was asked for last uses the memory until it is done."""
        if self.done is not None:
            self.done.record()

    def wait(self) -> None:
        if self.done is not None:
            self.done.synchronize()

    def put(self, arrays: Arrays) -> dict[str, torch.Tensor]:
        """The arrays on the device, in one copy."""
        if self.done is None:
            return {name: torch.from_numpy(array) for name, array in arrays.items()}
        layout = Layout(sizes_of(arrays))
        pinned = self.reserve(layout.nbytes)
        for name, view in layout.on_host(pinned.numpy()).items():
            view[...] = arrays[name]
        flat = pinned.to(self.device, non_blocking=True)
        self.used()
        return layout.on_device(flat)

    def take(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, npt.NDArray[Any]]:
        """What the device holds, on the host, in one copy: the one wait of a step."""
        if self.done is None:
            return {name: tensor.numpy() for name, tensor in tensors.items()}
        layout = Layout(sizes_on_device(tensors))
        flat = torch.empty(layout.nbytes, dtype=torch.uint8, device=self.device)
        pack(tensors, layout, flat)
        pinned = self.reserve(layout.nbytes)
        pinned.copy_(flat, non_blocking=True)
        self.used()
        self.wait()
        return layout.on_host(pinned.numpy().copy())


class Port:
    """Memory of the host and of the device at fixed addresses, for what recorded work reads, or says.

    What was sent is on its way until something of the same stream has been fetched: `sent` says that nothing was yet.
    """

    def __init__(self, device: torch.device, nbytes: int) -> None:
        self.staging = Staging(device)
        self.host = self.staging.reserve(nbytes)
        self.numbers = self.host.numpy()
        self.device = torch.zeros(nbytes, dtype=torch.uint8, device=device)
        self.sent = False

    def __len__(self) -> int:
        return len(self.device)

    def wait(self) -> None:
        """Until what was sent last is there."""
        if self.sent and self.staging.done is not None:
            torch.cuda.synchronize(self.device.device)
        self.sent = False

    def slice(self, nbytes: int) -> Passage:
        return Passage(self, self.host[:nbytes], self.device[:nbytes])


@dataclass(frozen=True)
class Passage:
    """The beginning of a port, between the host and the device."""

    port: Port
    host: torch.Tensor
    device: torch.Tensor

    def send(self) -> None:
        self.device.copy_(self.host, non_blocking=True)
        self.port.sent = True

    def fetch(self) -> None:
        """Returns when all of it is there: the one wait of a step."""
        self.host.copy_(self.device, non_blocking=True)
        self.port.staging.used()
        self.port.staging.wait()

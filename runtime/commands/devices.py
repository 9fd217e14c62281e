"""Memory and compute capability of GPUs by their names, to size a model on a machine without them."""

from __future__ import annotations

import re
from typing import NamedTuple

from runtime.errors import ConfigError

RESERVED = 600 << 20  # bytes that the CUDA context and its libraries take before a model is loaded


class Device(NamedTuple):
    """A GPU: its memory in MiB, as nvidia-smi shows it, and its compute capability."""

    memory_mib: int
    capability: tuple[int, int]


DEVICES = {
    "Tesla T4": Device(15360, (7, 5)),
    "NVIDIA GeForce RTX 3060": Device(12288, (8, 6)),
    "NVIDIA GeForce RTX 3090": Device(24576, (8, 6)),
    "NVIDIA GeForce RTX 4070": Device(12282, (8, 9)),
    "NVIDIA GeForce RTX 4080": Device(16376, (8, 9)),
    "NVIDIA GeForce RTX 4090": Device(24564, (8, 9)),
    "NVIDIA GeForce RTX 5080": Device(16303, (12, 0)),
    "NVIDIA GeForce RTX 5090": Device(32607, (12, 0)),
    "NVIDIA A10": Device(23028, (8, 6)),
    "NVIDIA A10G": Device(23028, (8, 6)),
    "NVIDIA A40": Device(46068, (8, 6)),
    "NVIDIA RTX A6000": Device(49140, (8, 6)),
    "NVIDIA RTX 6000 Ada Generation": Device(49140, (8, 9)),
    "NVIDIA A100 40GB": Device(40960, (8, 0)),
    "NVIDIA A100 80GB": Device(81920, (8, 0)),
    "NVIDIA L4": Device(23034, (8, 9)),
    "NVIDIA L40S": Device(46068, (8, 9)),
    "NVIDIA H100": Device(81559, (9, 0)),
    "NVIDIA H100 NVL": Device(95830, (9, 0)),
    "NVIDIA H200": Device(143771, (9, 0)),
    "NVIDIA B200": Device(183359, (10, 0)),
}
_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?GB", re.IGNORECASE)


def free_memory(name: str) -> tuple[str, int, tuple[int, int] | None]:
    """Returns full name, bytes that are free before a model is loaded, and compute capability of a GPU.

    Args:
        name: A name of `DEVICES` or a part of it, whatever the case, or the memory of a GPU, such as ``24GB``.

    Raises:
        ConfigError: No device, or several, have this name.
    """
    if size := _SIZE.fullmatch(name.strip()):
        return f"a GPU of {size[1]} GB", max(int(float(size[1]) * 1e9) - RESERVED, 0), None
    words = _words(name)
    own = {known: _words(known) for known in DEVICES}
    found = [known for known in DEVICES if words in (own[known], own[known] - {"nvidia"})]
    found = found or [known for known in DEVICES if words < own[known]]
    if not found:  # torch's names have more words, such as NVIDIA A100-SXM4-80GB
        inside = [known for known in DEVICES if own[known] - {"nvidia"} < words]
        found = [known for known in inside if len(own[known]) == max(len(own[each]) for each in inside)]
    if len(found) != 1:
        which = "names several devices" if found else "is not a known device"
        names = ", ".join(found or DEVICES)
        raise ConfigError(f"--device {name!r} {which}; give one of {names}, or its memory, such as 24GB")
    memory, capability = DEVICES[found[0]]
    return found[0], (memory << 20) - RESERVED, capability


def _words(name: str) -> set[str]:
    return set(re.split(r"[\s-]+", name.lower().strip()))

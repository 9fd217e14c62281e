"""Digests that show whether two hosts have the same checkpoint, without reading all of it."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from runtime.weights import checkpoint_files

SUFFIXES = (".json", ".safetensors", ".txt", ".model", ".tiktoken")
SAMPLE_BYTES = 1 << 16  # bytes per sample
NUM_SAMPLES = 16  # samples per file, including its beginning and end


def file_digests(directory: Path) -> dict[str, str]:
    """Returns file name -> digest of its size and samples, for JSON, safetensors and tokenizer files."""
    found = {}
    for path in sorted(path for suffix in SUFFIXES for path in directory.glob(f"*{suffix}")):
        with checkpoint_files.opened(directory, path.name) as descriptor:
            if descriptor is not None:
                found[path.name] = _digest(descriptor)
    return found


def _digest(descriptor: int) -> str:
    size = os.fstat(descriptor).st_size
    made = hashlib.sha256(str(size).encode())
    last = max(size - SAMPLE_BYTES, 0)
    for sample in range(NUM_SAMPLES):
        made.update(os.pread(descriptor, SAMPLE_BYTES, last * sample // (NUM_SAMPLES - 1)))
    return made.hexdigest()

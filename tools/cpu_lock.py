"""Prints constraints without torch and the packages that only its CUDA build needs: ``python -m tools.cpu_lock FILE``.

`make setup TORCH=cpu` installs these constraints, then torch's build for CPUs. It runs before the environment has
packages, so this module needs only the standard library.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

PACKAGE = re.compile(r"^(?P<name>[a-z0-9][\w.-]*)==.*\n(?:[ ]+.*\n)*", re.MULTILINE)
ONLY_CUDA = re.compile(r"torch|triton|nvidia-.*|cuda-.*")


def without_cuda(constraints: str) -> str:
    """Returns the constraints without torch, Triton and NVIDIA's libraries."""
    return PACKAGE.sub(lambda found: "" if ONLY_CUDA.fullmatch(found["name"]) else found[0], constraints)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        prog="python -m tools.cpu_lock", description="Prints constraints without torch and its CUDA packages."
    )
    parser.add_argument("file", type=Path, help="the constraints")
    try:
        constraints = parser.parse_args().file.read_text(encoding="utf-8")
    except OSError as error:
        parser.error(str(error))
    sys.stdout.write(without_cuda(constraints))

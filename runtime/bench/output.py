"""Output files of a benchmark, checked before it measures."""

from __future__ import annotations

import argparse
from pathlib import Path


def new_file(text: str) -> Path:
    """Parses an argument that names a file to write."""
    path = Path(text)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is a directory; name a file in it")
    if not path.absolute().parent.is_dir():
        raise argparse.ArgumentTypeError(f"the directory of {text!r} does not exist; create it")
    return path


def add_json(parser: argparse.ArgumentParser, what: str = "the figures") -> None:
    parser.add_argument("--json", type=new_file, metavar="FILE", help=f"also write {what} to this file")

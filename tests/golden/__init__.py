"""Folder of the golden data: checkpoints with logits and answers of the published implementations (README.md)."""

from pathlib import Path

GOLDEN = Path(__file__).parent

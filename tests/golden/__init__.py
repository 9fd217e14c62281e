"""Folder of the golden data: checkpoints with logits and answers of the published implementations (README.md)."""

from __future__ import annotations

from pathlib import Path

GOLDEN = Path(__file__).parent

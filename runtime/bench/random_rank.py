"""Rank worker with random weights. Rank 0 of an engine of `random_weights.py` starts it."""

from __future__ import annotations

import sys

from runtime.bench.random_weights import load_random
from runtime.executor import rank_worker

if __name__ == "__main__":
    sys.exit(rank_worker.main(load=load_random))

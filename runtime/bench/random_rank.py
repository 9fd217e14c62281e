"""A rank whose weights are drawn; started by the rank of `random_weights.py` that leads."""

from __future__ import annotations

import sys

from runtime.bench.random_weights import load_random
from runtime.distributed import rank_worker

if __name__ == "__main__":
    sys.exit(rank_worker.main(load=load_random))

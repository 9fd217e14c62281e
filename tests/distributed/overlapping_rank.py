"""A rank whose small steps overlap all-reduces with computation, as large ones do."""

from __future__ import annotations

import sys

from runtime.distributed import process_group, rank_worker

OVERLAP_ROWS = 6


def lower() -> None:
    process_group.OVERLAP_ROWS = OVERLAP_ROWS


if __name__ == "__main__":
    sys.exit(rank_worker.main(prepare=lower))

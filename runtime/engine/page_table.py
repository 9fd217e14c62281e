"""The live requests' page tables as one array, so that a step takes what it needs in one indexing."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


class PageTable:
    """Args:
    rows: requests at a time. units: the most units of one request. pages_per_unit: pages that a unit stands for.
    """

    def __init__(self, *, rows: int, units: int, pages_per_unit: int, page_size: int) -> None:
        self.page_size = page_size
        self._pages_per_unit = pages_per_unit
        self._pages = np.zeros((rows, units * pages_per_unit), dtype=np.int32)
        self.version = 0  # grows with every change
        self._free_rows = list(range(rows - 1, -1, -1))

    def take_row(self) -> int:
        return self._free_rows.pop()

    def give_back(self, row: int) -> None:
        self._free_rows.append(row)

    def append(self, row: int, at: int, units: list[int]) -> None:
        """Write a request's units from its `at`-th on."""
        self.version += 1
        n = self._pages_per_unit
        if n == 1:
            for place, unit in enumerate(units, at):  # mostly one: a slice would take ten times as long
                self._pages[row, place] = unit
            return
        pages = np.array(units, dtype=np.int32)[:, None] * n + np.arange(n, dtype=np.int32)
        self._pages[row, at * n : (at + len(units)) * n] = pages.ravel()

    def rows(self, rows: npt.NDArray[np.int64], max_tokens: int) -> npt.NDArray[np.int32]:
        """[len(rows), pages that `max_tokens` tokens need]; entries past a request's own pages are stale but valid."""
        width = -(-max_tokens // self.page_size)
        return self._pages[rows, :width]

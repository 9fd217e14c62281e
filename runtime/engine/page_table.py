"""The page tables of all running requests in one array, so that a step reads its rows with one index operation."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


class PageTable:
    """Stores the pages of each running request.

    Args:
        rows: maximum number of running requests.
        page_groups: maximum number of page groups per request.
        pages_per_group: pages per page group.
        page_size: tokens per page.

    Attributes:
        version: increases with every change.
    """

    def __init__(self, *, rows: int, page_groups: int, pages_per_group: int, page_size: int) -> None:
        self.page_size = page_size
        self._pages_per_group = pages_per_group
        self._pages = np.zeros((rows, page_groups * pages_per_group), dtype=np.int32)
        self.version = 0
        self._free_rows = list(range(rows - 1, -1, -1))

    def allocate_row(self) -> int:
        return self._free_rows.pop()

    def free_row(self, row: int) -> None:
        self._free_rows.append(row)

    def write(self, row: int, at: int, page_groups: list[int]) -> None:
        """Writes page groups of a request from index `at` on."""
        self.version += 1
        n = self._pages_per_group
        if n == 1:
            for i, page_group in enumerate(page_groups, at):  # usually one: a slice would take ten times as long
                self._pages[row, i] = page_group
            return
        pages = np.array(page_groups, dtype=np.int32)[:, None] * n + np.arange(n, dtype=np.int32)
        self._pages[row, at * n : (at + len(page_groups)) * n] = pages.ravel()

    def rows(self, rows: npt.NDArray[np.int64], max_tokens: int) -> npt.NDArray[np.int32]:
        """Returns page ids [len(rows), pages for `max_tokens` tokens].

        Entries after a request's last page are stale but valid ids.
        """
        width = -(-max_tokens // self.page_size)
        return self._pages[rows, :width]

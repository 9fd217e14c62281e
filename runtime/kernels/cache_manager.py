"""A Triton cache in two directories: the kernels that the image ships, and those that this pod compiled."""

from __future__ import annotations

import json
import os

from triton import knobs
from triton.runtime.cache import FileCacheManager

from runtime.config.flags import KERNEL_CACHE


class LayeredCacheManager(FileCacheManager):  # type: ignore[misc]
    """Reads UNMASK_KERNEL_CACHE first, then TRITON_CACHE_DIR. Writes only to TRITON_CACHE_DIR.

    Triton uses it if ``TRITON_CACHE_MANAGER`` names it, which `KernelCompiler` sets. The key of an entry is a hash of
    the kernel's source, its specialization, its options, the target and Triton itself. So an entry of another version
    is never found.
    """

    def __init__(self, key: str, override: bool = False, dump: bool = False) -> None:
        self.shipped_dir = ""
        if override or dump:
            super().__init__(key, override=override, dump=dump)
            return
        self.key = key
        self.cache_dir = os.path.join(knobs.cache.dir, key)  # created by the first `put`
        self.lock_path = os.path.join(self.cache_dir, "lock")
        if shipped := os.environ.get(KERNEL_CACHE):
            self.shipped_dir = os.path.join(shipped, key)

    def get_file(self, filename: str) -> str | None:
        shipped = os.path.join(self.shipped_dir, filename)
        if self.shipped_dir and os.path.exists(shipped):
            return shipped
        found: str | None = super().get_file(filename)
        return found

    def get_group(self, filename: str) -> dict[str, str] | None:
        """Returns the paths of a kernel's files by name; None if there is none.

        A group lists absolute paths of the directory where it was compiled. Only their names count in the shipped
        directory, so that it can be moved.
        """
        listed = os.path.join(self.shipped_dir, f"__grp__{filename}")
        if self.shipped_dir and os.path.exists(listed):
            with open(listed) as file:
                names = json.load(file).get("child_paths") or {}
            paths = {name: os.path.join(self.shipped_dir, name) for name in names}
            if paths and all(map(os.path.exists, paths.values())):
                return paths
        found: dict[str, str] | None = super().get_group(filename)
        return found

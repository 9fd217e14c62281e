"""Imports Triton if it is installed. Otherwise kernel modules still import, as their references need only torch, and a
launch raises an error.
"""

from __future__ import annotations

from typing import Any

try:
    import triton
    import triton.language as tl
except ImportError:  # pragma: no cover - the test machines have it

    class _Missing:
        """Stands for triton and its language while a module is read."""

        constexpr = object

        def jit(self, function: Any = None, **options: Any) -> Any:
            return self if function is not None else self.jit

        def __getitem__(self, grid: Any) -> Any:
            raise RuntimeError("this kernel needs the triton package, which is not installed")

        def __getattr__(self, name: str) -> Any:
            raise RuntimeError("this kernel needs the triton package, which is not installed")

    triton = tl = _Missing()  # type: ignore[assignment]

__all__ = ["tl", "triton"]

"""Data classes for checks of the source code and their findings."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Finding:
    """One place that breaks a rule.

    Attributes:
        package: group in whose baseline it is counted (`source.package_of`).
        key: key in the baseline, such as an identifier.
        path: file, from the root of the repository.
        line: line number, from 1.
        detail: text that is shown after the location, if not empty.
    """

    package: str
    key: str
    path: str
    line: int
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.path}:{self.line}" + (f" {self.detail}" if self.detail else "")


@dataclass(frozen=True)
class Check:
    """A rule whose violations are counted in baselines.

    Attributes:
        name: folder of its baselines.
        find: returns all violations in the repository.
        advice: returns how to fix a violation with the given key.
    """

    name: str
    find: Callable[[], Iterable[Finding]]
    advice: Callable[[str], str]

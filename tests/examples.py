"""Number of examples of property tests."""

from typing import Any

from hypothesis import settings


def examples(n: int, **others: Any) -> settings:
    """Returns settings with 3 `n` / 10 examples in the profile `ci`, and proportionally more in `thorough`."""
    return settings(max_examples=max(1, n * settings.default.max_examples // 100), **others)

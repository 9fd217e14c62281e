"""What a rule makes of a request's values, worked out once for all requests that ask for the same."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from runtime.algorithms.base import Merge, Rule
from runtime.request.field_spec import Value

KEPT = 256  # most requests set no value


class Terms(NamedTuple):
    """`asks`, `unstable`, `merge` and `row` of a `Rule`."""

    asks: int
    unstable: bool
    merge: Merge | None
    row: tuple[float, ...]


def terms(rule: Rule, values: Mapping[str, Value]) -> Terms:
    """Of the rule's fields and the strategy's."""
    return _terms(rule, tuple(values.items()))


@lru_cache(maxsize=KEPT)
def _terms(rule: Rule, items: tuple[tuple[str, Value], ...]) -> Terms:
    values = dict(items)
    return Terms(int(rule.asks(values)), rule.unstable(values), rule.merge(values), tuple(rule.row(values)))

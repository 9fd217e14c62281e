"""Splits the cases of long test matrices between `make test` and `make test-rest`."""

from collections.abc import Container, Iterable
from typing import Any

import pytest


def marked(cases: Iterable[Any], *, quick: Container[Any]) -> list[Any]:
    """Returns pytest parameters of `cases`; those that are not in `quick` carry the marker `matrix`.

    Args:
        cases: Values, tuples of values, or `pytest.param` objects with ids.
        quick: The values, tuples or ids of the cases that `make test` runs.
    """
    found = []
    for case in cases:
        if hasattr(case, "marks"):  # a result of pytest.param
            values, marks, id, key = *case, case.id
        else:
            values, marks, id, key = case if isinstance(case, tuple) else (case,), (), None, case
        found.append(pytest.param(*values, id=id, marks=(*marks, *(() if key in quick else [pytest.mark.matrix]))))
    assert any("matrix" not in {mark.name for mark in case.marks} for case in found), "`quick` has none of the cases"
    return found

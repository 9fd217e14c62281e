"""Tests that each example is rendered as in its snapshot.

`python -m tests.operator.snapshot` rewrites the snapshots.
"""

from __future__ import annotations

import pytest

from tests.operator.snapshot import FOLDER, examples, rendered

EXAMPLES = examples()


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_rendered_as_in_its_snapshot(name: str) -> None:
    assert rendered(EXAMPLES[name]) == (FOLDER / f"{name}.yaml").read_text()


def test_every_example_has_a_snapshot_and_every_snapshot_an_example() -> None:
    assert len(EXAMPLES) >= 5
    assert {path.stem for path in FOLDER.glob("*.yaml")} == set(EXAMPLES)

"""Tests of the oracle's random numbers, filters and draws."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.oracle.draws import choose, draw, filtered, mix, softmax, uniform

ROWS = st.lists(st.floats(-8, 8), min_size=2, max_size=12).map(np.array)


def test_mix_is_splitmix64() -> None:
    """The expected values are the first outputs of the published generator from state 0."""
    state, seen = 0, []
    for _ in range(3):
        seen.append(mix(state))
        state = (state + 0x9E3779B97F4A7C15) % (1 << 64)
    assert seen == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]


def test_uniform_looks_uniform_along_every_argument() -> None:
    for vary in range(3):
        numbers = [uniform(*[i if axis == vary else 7 for axis in range(3)]) for i in range(4000)]
        counts, _ = np.histogram(numbers, bins=20, range=(0, 1))
        assert ((counts - 200) ** 2 / 200).sum() < 60  # chi square, 19 degrees of freedom
        assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.06


def test_draw_takes_the_first_cumulative_above() -> None:
    probs = np.array([0.25, 0.0, 0.5, 0.25])
    assert [draw(probs, u) for u in (0.0, 0.2499, 0.25, 0.7499, 0.75, 0.99)] == [0, 0, 2, 2, 3, 3]
    assert draw(np.array([0.5, 0.4999, 0.0]), 0.99999) == 1  # rounding left none: the last possible id


@given(ROWS, st.integers(1, 12), st.floats(0.05, 1.0))
def test_filters_keep_what_their_definitions_say(row: np.ndarray, top_k: int, top_p: float) -> None:
    probs = filtered(row, top_k, top_p)
    assert probs.sum() == pytest.approx(1)
    candidates = set(np.flatnonzero(probs))
    within_k = set(np.argsort(-row, kind="stable")[:top_k].tolist())
    expected = np.zeros(len(row))
    expected[list(within_k)] = softmax(row[list(within_k)])
    assert candidates <= within_k
    # the kept ids reach top_p, and fewer would not
    total = expected[list(candidates)].sum()
    assert total >= top_p - 1e-9
    least = min(candidates, key=lambda i: (expected[i], -i))
    assert top_p >= 1 or total - expected[least] < top_p + 1e-9
    np.testing.assert_allclose(
        probs, np.where(np.isin(range(len(row)), list(candidates)), expected / total, 0), atol=1e-12
    )


def test_ties_keep_the_lowest_ids() -> None:
    row = np.array([0.0, 1.0, 1.0, 1.0])
    assert np.flatnonzero(filtered(row, 2, 1.0)).tolist() == [1, 2]
    assert np.flatnonzero(filtered(np.zeros(4), 0, 0.5)).tolist() == [0, 1]
    assert choose(row, 0.0, 0, 1.0, 0, 0, 0).token == 1


def test_draws_follow_the_distribution() -> None:
    row = np.log(np.array([0.5, 0.3, 0.2]))
    counts = np.bincount([choose(row, 1.0, 0, 1.0, 5, i, 0).token for i in range(6000)], minlength=3)
    np.testing.assert_allclose(counts / 6000, [0.5, 0.3, 0.2], atol=0.02)
    sharp = np.bincount([choose(row, 0.5, 0, 1.0, 5, i, 0).token for i in range(6000)], minlength=3)
    squares = np.array([0.25, 0.09, 0.04])
    np.testing.assert_allclose(sharp / 6000, squares / squares.sum(), atol=0.02)

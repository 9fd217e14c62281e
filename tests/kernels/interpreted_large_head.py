"""Tests of two-pass attention in Triton's interpreter, on the CPU; collected like interpreted.py."""

from dataclasses import replace

import pytest
import torch

from runtime.kernels.paged_attention import (
    _tiles_per_pass,
    paged_attention,
    paged_attention_reference,
    two_pass_attention,
)
from runtime.layers.kv_pool import LAYOUTS
from tests.kernels import interpreting  # noqa: F401
from tests.kernels.cases import assert_near, attention_case, with_any_sight
from tests.kernels.large_head_cases import SMALL, check_in_two

layouts = pytest.mark.parametrize("layout", list(LAYOUTS))
tiles = pytest.mark.parametrize(("scores_config", "values_config"), SMALL)


@layouts
@tiles
@pytest.mark.parametrize(("heads", "kv_heads", "page_size"), [(8, 1, 16), (4, 2, 4), (7, 1, 32), (2, 2, 1)])
def test_wide_rows_that_see_anything(heads, kv_heads, page_size, scores_config, values_config, layout):
    runs = [(70, 20), (33, 30), (0, 9), (5, 1)]
    check_in_two(runs, None, heads, kv_heads, 32, page_size, torch.float16, "cpu", layout, scores_config, values_config)


@layouts
@tiles
def test_wide_prompts_committed_rows_and_canvases_in_one_launch(scores_config, values_config, layout):
    """Checks a canvas behind its committed rows, one with keys that fill KV tiles, and two prefill chunks."""
    runs, committed = [(40, 32), (112, 16), (0, 35), (64, 5)], [16, 0, 35, 5]
    check_in_two(runs, committed, 8, 2, 16, 8, torch.float16, "cpu", layout, scores_config, values_config)


@layouts
def test_wide_tiles_of_one_request(layout):
    check_in_two([(20, 300), (0, 40)], [270, 40], 2, 1, 16, 16, torch.float16, "cpu", layout, *SMALL[2])


@layouts
def test_wide_heads_of_512(layout):
    check_in_two([(150, 20), (0, 9)], [4, 9], 8, 1, 512, 32, torch.float16, "cpu", layout)


@layouts
@tiles
def test_wide_rows_that_see_nothing_are_zero(scores_config, values_config, layout):
    """Checks rows without visible keys in a tile with other rows, and in a tile without."""
    q, k, v, batch = attention_case([(40, 80), (0, 5)], 2, 1, 16, 1, 8, torch.float16, "cpu", layout=layout)
    visible_end = batch.visible_end.masked_fill(torch.arange(85) % 3 == 0, 0)
    visible_end[64:80] = visible_end[80:] = 0
    batch = replace(batch, visible_end=visible_end)
    expected = paged_attention_reference(q.double(), k.double(), v.double(), batch, scale=0.25)
    out = two_pass_attention(q, k, v, batch, scale=0.25, scores_config=scores_config, values_config=values_config)
    assert_near(out, expected, torch.float16)
    assert not out[visible_end == 0].any()


def test_wide_attention_bits_do_not_depend_on_the_number_of_passes(monkeypatch):
    q, k, v, batch = attention_case([(40, 8), (0, 33), (9, 9), (64, 5), (0, 2)], 4, 2, 16, 8, 8, torch.float16, "cpu")
    batch = with_any_sight(batch, [48, 33, 18, 69, 2])
    q = torch.cat([q, torch.zeros_like(q[:2])])
    scores_config, values_config = SMALL[0]
    each = -(-33 // 8) * 2 * 16 * 96 * 2  # bytes per tile: programs of 16 rows, and three KV tiles of 32 keys
    outs = []
    for limit, together in ((1 << 30, 6), (2 * each, 2), (4 * each, 3), (1, 0)):
        monkeypatch.setattr("runtime.kernels.paged_attention.MAX_WORKSPACE", limit)
        assert _tiles_per_pass(q, 2, batch, scores_config) == (together, 10)
        outs.append(
            two_pass_attention(q, k, v, batch, scale=0.25, scores_config=scores_config, values_config=values_config)[
                :-2
            ]
        )
    assert all(torch.equal(out, outs[0]) for out in outs)


def test_two_pass_attention_is_used_where_it_is_faster(monkeypatch):
    q, k, v, batch = attention_case([(30, 16), (0, 9)], 8, 1, 512, 16, 16, torch.float16, "cpu")
    expected = paged_attention_reference(q.double(), k.double(), v.double(), batch, scale=0.05)
    went = []

    def spied(*args, **named):
        went.append(named)
        return two_pass_attention(*args, **named)

    monkeypatch.setattr("runtime.kernels.paged_attention.two_pass_attention", spied)
    for enough, own, times in (
        (1, {}, 1), (2, {}, 1), (3, {}, 0), (1, {"splits": 1}, 0), (1, {"batch_invariant": True}, 0),
        (1, {"window": 99}, 0), (1, {"grouped": False}, 0),
    ):  # fmt: skip
        monkeypatch.setattr("runtime.kernels.paged_attention.MIN_PROGRAMS", enough)
        assert_near(paged_attention(q, k, v, batch, scale=0.05, **own), expected, torch.float16)
        assert len(went) == times, (enough, own)
        went.clear()

"""Tests of torch references, and of the sizes that kernels are launched with."""

from itertools import product
from types import SimpleNamespace

import pytest
import torch

from runtime.kernels.activation import select_gate_up_tile
from runtime.kernels.layernorm import gemm_add_norm_reference
from runtime.kernels.next_segments import (
    CHOSEN_ROWS,
    FINAL,
    HEADER,
    LEFT,
    UNKNOWN,
    BlockCounters,
    BlockEnd,
    Offer,
    choose_segments_reference,
)
from runtime.kernels.segments import (
    COUNT,
    FIELDS,
    PADDING,
    REMAINDER,
    START,
    Segment,
    expand_segments_reference,
    visible_end_of,
)
from runtime.kernels.weighted_embedding import soft_embedding_reference

pytest.importorskip("triton")

from runtime.kernels.paged_attention import MAX_WORKSPACE, SCORES_CONFIG, _tiles_per_pass
from tests.kernels.cases import BLOCK_ENDS, some_outcomes, some_segments

FLOATS = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_a_mean_under_scaled_distributions_is_rounded_once(monkeypatch, dtype):
    """The error does not depend on the factors as long as the dtype can represent the scaled weights."""
    monkeypatch.setattr("runtime.kernels.weighted_embedding.WIDE_CHUNK", 11)
    random = torch.Generator().manual_seed(1)
    table = torch.randn(40, 6, generator=random).to(dtype)
    times = torch.tensor([1.0, 3.0, 0.1] if dtype == torch.float16 else [2.0**96, 3.0, 2.0**-70], dtype=torch.float64)
    probs = torch.randn(3, 40, dtype=torch.float64, generator=random).mul(3).softmax(1)
    multiples = (times[:, None] * probs).to(dtype)
    expected = multiples.double() @ table.double() / times[:, None]
    got = soft_embedding_reference(multiples, table, times.to(torch.promote_types(dtype, torch.float32)))
    assert got.dtype == dtype
    close = torch.finfo(dtype).eps
    torch.testing.assert_close(got.double(), expected, rtol=close, atol=4e-6 if dtype != torch.float64 else 1e-12)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_a_mean_under_distributions_of_another_dtype(dtype):
    random = torch.Generator().manual_seed(2)
    table = torch.randn(9, 4, generator=random).to(dtype)
    probs = torch.randn(3, 9, dtype=torch.float64, generator=random).softmax(1)
    expected = probs.to(dtype) @ table
    assert torch.equal(soft_embedding_reference(probs, table), expected)
    ones = torch.ones(3, dtype=torch.promote_types(dtype, torch.float32))
    torch.testing.assert_close(soft_embedding_reference(probs, table, ones), expected)


@pytest.mark.parametrize(("rows", "once"), [(32, True), (33, False)])
def test_only_a_split_gemm_is_rounded_once(rows, once):
    drawn = torch.Generator().manual_seed(5)
    x, weight, residual = (
        torch.randn(*shape, generator=drawn).bfloat16() for shape in ((rows, 2048), (2064, 2048), (rows, 2064))
    )
    made = x.double() @ weight.double().T
    rounded = (made if once else made.bfloat16().double()) + residual.double()
    _, total = gemm_add_norm_reference(x, weight, residual, None, 1e-6)
    assert (total == rounded.bfloat16()).double().mean() > 0.999


@pytest.mark.parametrize("width", [256, 2112, 4096, 12288, 18944])
def test_steps_of_powers_of_two_select_every_tile(width):
    """Warmup runs steps of these sizes before the server is ready, so no tile is compiled while requests wait."""
    met = {select_gate_up_tile(1 << n, 2 * width, 132) for n in range(14)}
    assert {select_gate_up_tile(rows, 2 * width, 132) for rows in range(1, 8193, 7)} - met <= {None}


def make_batch(
    tiles: int, tile_rows: int = 256, keys: int = 1024, heads: int = 16, dim: int = 512, dtype=torch.bfloat16
):
    """Returns queries, and a batch that has only shapes, with pages of 32."""
    q = torch.empty(tiles * tile_rows, heads, dim, dtype=dtype, device="meta")
    batch = {"query_tiles": torch.empty(tiles, 3), "page_table": torch.empty(tiles, keys // 32)}
    return q, SimpleNamespace(**batch, page_size=32, tile_rows=tile_rows)


@pytest.mark.parametrize(("tiles", "keys"), [(1, 100), (9, 1024), (33, 1024), (33, 8192), (40, 32768), (2, 1 << 20)])
def test_workspace_of_a_pass_is_bounded(tiles, keys):
    q, batch = make_batch(tiles, keys=keys)
    together, programs = _tiles_per_pass(q, 2, batch, SCORES_CONFIG)
    assert programs == 32
    rounded = -(-keys // 32 * 32 // SCORES_CONFIG.keys) * SCORES_CONFIG.keys
    assert together * programs * SCORES_CONFIG.block_m * rounded * 2 <= MAX_WORKSPACE
    assert together or keys == 1 << 20
    if together:
        assert together == -(-tiles // -(-tiles // together)), "the tiles are not divided evenly between the passes"


@pytest.mark.parametrize(("counts", "rows"), [([5], 5), ([32, 7, 1], 64), ([600, 1, 2], 610)])
def test_rows_of_segments(counts, rows):
    """Compares `expand_segments_reference` with a loop over rows."""
    segments, tables, tiles = some_segments(counts, rows, 16)
    found = expand_segments_reference(segments, tables, rows, tiles, 16)
    expected, expected_tiles = [], []
    for one in map(Segment._make, segments.tolist()):
        count = min(one.count, rows - len(expected))
        for offset in range(count):
            at = one.start + offset
            if one.start == PADDING:
                expected.append((int(tables.tokens[0]), 0, -1, 1, 0, False, -1, -1))
                continue
            block_end = one.origin
            while at >= one.origin and block_end <= at:
                block_end += one.block_size
            slot = int(tables.pages[one.slot, at // 16]) * 16 + at % 16
            end = min(at + 1 if at < one.causal_end else block_end, one.visible_limit)
            first = 1 + one.slot * tables.max_len + one.start if one.first_token < 0 else one.first_token
            token, window = int(tables.tokens[first + offset]), min(at, one.window_end)
            editable = at >= one.editable_start
            own = one.slot * one.conditioned + at - one.editable_start if one.conditioned and editable else -1
            expected.append((token, at, slot, end, window, editable, one.lora_slot, own))
        for first in range(0, count, 16):
            expected_tiles.append([one.slot, len(expected) - count + first, min(16, count - first)])
    assert list(zip(*(array.tolist() for array in found[:-1]), strict=True)) == expected
    assert found.query_tiles.tolist() == expected_tiles + [[0, 0, 0]] * (tiles - len(expected_tiles))
    at = segments[: len(counts), START] + segments[: len(counts), COUNT] - 1
    last = visible_end_of(segments[: len(counts)].numpy(), at.numpy())
    assert last.tolist() == found.visible_end[torch.tensor(counts).cumsum(0) - 1].tolist()


@pytest.mark.parametrize("max_rows", [1000, 40])
@pytest.mark.parametrize("may_leave", [False, True])
@pytest.mark.parametrize(
    "ends",
    [
        *product(BLOCK_ENDS),
        ("continues", "filled"),
        ("filled", "eos"),
        ("filled",) * 3,
        ("no block", "eos", "no block"),
    ],
)
def test_next_segments(ends, may_leave, max_rows):
    """Compares `choose_segments_reference` with a loop over requests."""
    outcomes, counters, choices = some_outcomes(ends)
    segments = torch.full((len(ends) + 2, FIELDS), 7, dtype=torch.int32)
    choice = torch.full((HEADER + len(ends),), 7, dtype=torch.int32)
    offer = torch.tensor(Offer(len(ends), max_rows, may_leave), dtype=torch.int32)
    choose_segments_reference(BlockCounters(*counters), outcomes, offer, segments, choice)
    pairs = outcomes[:, len(BlockEnd._fields) :].view(-1, 2, FIELDS)
    segment_of = zip(pairs.tolist(), choices, strict=True)
    chosen = [Segment(*pair[one == FINAL])._replace(**{"count": 0} if one == LEFT else {}) for pair, one in segment_of]
    counts = [one.count for one in chosen]
    if None in choices or (LEFT in choices and not may_leave) or not 0 < sum(counts) <= max_rows:
        assert choice[CHOSEN_ROWS] == UNKNOWN
        assert (segments == 7).all(), "the segments of an unknown forward were written"
        return
    tile_rows = min(max(counts), 256)
    assert choice.tolist() == [sum(counts), sum(-(-count // tile_rows) for count in counts), tile_rows, *choices]
    padding = Segment(chosen[0].slot, PADDING, REMAINDER, *[0] * (FIELDS - 3))
    assert segments.tolist() == [*map(list, chosen), list(padding), [7] * FIELDS]

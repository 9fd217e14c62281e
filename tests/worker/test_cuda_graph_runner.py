"""Steps that are filled up and replayed answer as those that are not, and record what a CUDA graph can hold."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import numpy as np
import pytest
import torch

from runtime import LLM, SamplingParams
from runtime.algorithms import Stat, rules
from runtime.engine.lora_manager import Adapters
from runtime.kernels.forward_batch import TILE_ROWS, cut_tiles
from runtime.strategies import DecodingContext, make_strategy
from runtime.worker.capture_sizes import Sizes, sampled_up, stairs
from runtime.worker.cuda_graph_runner import ReplayingRunner
from runtime.worker.graph_padding import Views, fill_forward, fill_sample, forward_kinds, sample_kinds
from runtime.worker.input_batch import ForwardShape, GroupShape, SampleShape
from runtime.worker.memory import step_sizes
from tests.golden import GOLDEN
from tests.matrix import marked
from tests.request.test_sampling_params import info
from tests.worker.replays import PROMPTS, SMALL, Served, check, pretending, served

# One per kind of decoding; `make test-rest` runs the others.
QUICK = ("sdar_moe-sdar_moe-multi_bd-4-1", "d2f_llada-llada-d2f-16-4", "dmax-llada2-dmax-edit-8-1")


@pytest.mark.parametrize("each", marked(served(once=True), quick=QUICK))
def test_filled_up_steps_answer_the_same(each: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    with pretending(monkeypatch):
        check(each, 2, device="cpu", dtype="float64")


@pytest.mark.slow
@pytest.mark.parametrize("each", served())
def test_filled_up_steps_of_every_checkpoint_answer_the_same(each: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    with pretending(monkeypatch):
        check(each, 2, device="cpu", dtype="float64")


@pytest.mark.parametrize("each", [Served("llada2_tiny"), Served("llada", (("full_cache", "dual"),))])
def test_a_batch_that_only_denoises_sends_its_tokens_alone(each: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    again: list[int] = []
    replay = ReplayingRunner._replay

    def counted(self: ReplayingRunner, tokens: np.ndarray) -> torch.Tensor | None:
        again.append(len(tokens))
        return replay(self, tokens)

    monkeypatch.setattr(ReplayingRunner, "_replay", counted)
    flags = {"skip_tokenizer": True, "device": "cpu"} | SMALL | dict(each.flags)
    with pretending(monkeypatch), LLM(str(GOLDEN / each.folder), **flags) as llm:
        slow = {"accept_threshold": 1.0} if llm.info.default_rule == "threshold" else {}
        llm.generate(PROMPTS[:1], SamplingParams(max_tokens=16, ignore_eos=True, decoding=slow))
    assert len(again) >= 4, again


def test_sizes_are_few_and_close() -> None:
    sizes = stairs(128)
    assert sizes[0] == 1
    assert sizes[-1] == 128
    assert all(b <= max(a * 1.5, a + 1) for a, b in pairwise(sizes))
    assert len(sizes) < 30
    assert stairs(1) == [1]
    assert [sampled_up(n, 1024) for n in (0, 1, 128, 129, 1024)] == [0, 128, 128, 256, 1024]
    assert [sampled_up(n, 32) for n in (1, 17, 32)] == [16, 32, 32]


@pytest.mark.parametrize("most", [32, 100, 512])
@pytest.mark.parametrize("places", [1, 3, 40, 600])
def test_whatever_fits_has_room(most: int, places: int) -> None:
    sizes = Sizes(block=8, pages=7, page_size=4, most_rows=most, places=places)
    recorded = set(sizes.forwards(told=True))
    for rows in range(1, most // 8 * 8 + 1):
        for tiles in {1, max(1, rows // 8), rows}:
            if -(-rows // tiles) > TILE_ROWS or tiles > places:
                continue
            shape = ForwardShape(rows, tiles, tiles, 3, -(-rows // tiles), 9)
            padded = sizes.forward(shape, told=True)
            if padded is None:
                assert tiles > rows // 8  # tiles of less than a block, more than a batch of blocks has
                continue
            assert padded in recorded
            assert padded.requests >= tiles
            assert padded.tiles >= tiles + -(-(padded.rows - rows) // padded.tile_rows)
    assert sizes.forward(ForwardShape(most + 8, 1, 1, 1, 8, 8), told=False) is None


@pytest.mark.parametrize("places", [1, 5, 64])
def test_turns_of_whole_blocks_find_a_recording(places: int) -> None:
    """As many requests as there may be, each with one block, two, or a chunk of its prompt, in any mixture."""
    sizes = Sizes(block=32, pages=7, page_size=4, most_rows=8192, places=places)
    recorded = set(sizes.forwards(told=False))
    random = np.random.default_rng(places)
    for largest in (1, 2, 3, 8, 200):
        for requests in {1, places // 2 or 1, places}:
            counts = random.integers(1, largest + 1, requests) * 32
            counts = counts[counts.cumsum() <= 8192]
            tiles = cut_tiles(counts)
            shape = ForwardShape(int(counts.sum()), len(tiles), len(counts), 3, int(tiles[:, 2].max()), 9)
            padded = sizes.forward(shape, told=False)
            assert padded in recorded
            assert padded.tile_rows <= max(TILE_ROWS if largest > 2 else 64, 32)


def test_a_block_larger_than_a_tile_is_recorded() -> None:
    sizes = Sizes(block=512, pages=7, page_size=4, most_rows=4096, places=3)
    for shape in sizes.forwards(told=False):
        fill_forward(*_empty(shape, sizes.block), shape, sizes)
    counts = np.array([512, 1024, 512])
    shape = ForwardShape(2048, 8, 3, 3, TILE_ROWS, 9)
    assert len(cut_tiles(counts)) == shape.tiles
    assert sizes.forward(shape, told=False) in set(sizes.forwards(told=False))


def _empty(shape: ForwardShape, block: int) -> tuple[Views, ForwardShape, Views]:
    """Arrays of a shape, and a step of nothing to fill up to it."""
    kinds = forward_kinds(shape, block)
    into = {name: np.zeros(size, dtype) for name, (dtype, size) in kinds.items()}
    nothing = {name: array[:0] for name, array in into.items()}
    return into, ForwardShape(0, 0, 0, shape.pages, 0, 0), nothing


def test_recordings_have_no_more_tiles_than_steps() -> None:
    sizes = Sizes(block=32, pages=7, page_size=4, most_rows=8192, places=16)
    assert {shape.rows for shape in sizes.forwards(told=False) if shape.tile_rows == 32} == {32 * n for n in stairs(16)}
    (largest, *_) = sizes.forwards(told=False)
    assert (largest.rows, largest.tile_rows, largest.tiles, largest.requests) == (8192, TILE_ROWS, 16 + 32 + 1, 17)


def test_blocks_leave_room_for_a_dead_one() -> None:
    sizes = Sizes(block=8, pages=7, page_size=4, most_rows=64, places=3)
    group = GroupShape(rules()[0], int(Stat.NONE), 5, 33, drawn=20, limited=3, records=9)
    padded = sizes.sample(SampleShape(5, 7, (group,)), noise=False, placed=False)
    assert padded is not None
    assert (padded.blocks, padded.size) == (7, 8)
    (larger,) = padded.groups
    assert (larger.blocks, larger.limited, larger.drawn, larger.rows, larger.records) == (7, 16, 48, 64, 16)
    assert sizes.sample(SampleShape(9, 8, (group,)), noise=False, placed=False) is None


@pytest.mark.parametrize("rows", [(33, 0), (0, 7), (5, 16), (0, 0)])
def test_what_lies_behind_the_last_live_row_is_dead(rows: tuple[int, int]) -> None:
    """The head does none of it."""
    sizes = Sizes(block=8, pages=7, page_size=4, most_rows=64, places=3)
    shape = SampleShape(6, 8, tuple(GroupShape(rules()[0], 0, 3, n) for n in rows))
    arrays = {name: np.ones(size, dtype) for name, (dtype, size) in sample_kinds(shape, [2, 2], [0, 0]).items()}
    arrays["block"] = np.repeat([0, 3], rows)
    padded = sizes.sample(shape, noise=False, placed=False)
    assert padded is not None
    into = {name: np.full(size, 9, dtype) for name, (dtype, size) in sample_kinds(padded, [2, 2], [0, 0]).items()}
    fill_sample(into, shape, arrays, padded, sizes)
    (live,) = into["live"]
    assert (into["block"][live:] == padded.blocks - 1).all()
    assert live == (padded.groups[0].rows + rows[1] if rows[1] else rows[0])


def test_what_is_sampled_is_recorded_for_no_more_blocks_than_are_open() -> None:
    few = Sizes(block=8, pages=7, page_size=4, most_rows=512, places=3, sampled=5)
    assert few.blocks[-1] == 64
    assert few.sampled_blocks == [1, 2, 3, 4, 6]  # five are filled up to six
    every = Sizes(block=8, pages=7, page_size=4, most_rows=64, places=3)
    assert every.sampled_blocks == every.blocks
    assert Sizes(block=8, pages=7, page_size=4, most_rows=16, places=3, sampled=99).sampled_blocks == [1, 2]


@pytest.mark.parametrize(("requests", "budget", "rows"), [(1, 8192, 2048), (128, 8192, 4096), (1, 512, 512)])
def test_prompts_find_recorded_steps_however_few_requests_there_may_be(requests: int, budget: int, rows: int) -> None:
    facts = msgspec.structs.replace(info(), block_size=32, max_num_reqs=requests, max_num_batched_tokens=budget)
    strategy = make_strategy("multi_bd", ("multi_bd",), DecodingContext(32, 2, True, facts.max_model_len))
    sizes = step_sizes(facts, strategy, 4, Adapters())
    assert (sizes.most_rows, sizes.sampled) == (rows, 2 * requests)


def test_a_whole_step_is_recorded_beside_the_smaller_ones() -> None:
    """Prompts fill a step up to what a server lets it have; what only fills half of that is launched anew."""
    sizes = Sizes(block=32, pages=7, page_size=4, most_rows=4096, places=16, whole=8192)
    recorded = sizes.forwards(told=False)
    assert [shape.rows for shape in recorded].count(8192) == 1
    for rows, found in ((8192, 8192), (7680, 8192), (7679, None), (5000, None), (4096, 4096), (8193, None)):
        padded = sizes.forward(ForwardShape(rows, 32, 16, 3, TILE_ROWS, 9), told=False)
        assert (None if padded is None else padded.rows) == found, rows
        assert padded is None or padded in recorded
    many = Sizes(block=32, pages=7, page_size=4, most_rows=4096, places=128, whole=8192)
    commits = ForwardShape(8192, 128, 128, 3, 64, 9)  # of all requests at once
    padded = many.forward(commits, told=False)
    assert padded is not None
    assert (padded.tile_rows, padded in many.forwards(told=False)) == (64, True)

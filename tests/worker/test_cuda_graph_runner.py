"""Tests of the CUDA graph runner: padding, captured sizes, and captures at start and between steps."""

from contextlib import nullcontext
from itertools import pairwise
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
import torch

from runtime import LLM
from runtime.algorithms.base import LogitStat, get_algorithm
from runtime.config import EngineConfig
from runtime.engine.engine import Engine
from runtime.engine.setup import load_engine
from runtime.executor.executor import DistributedRunner
from runtime.kernels.forward_batch import MAX_TILE_ROWS
from runtime.request.engine_messages import DecodingParams, RequestSpec
from runtime.scheduling.lora_manager import LoRAManager
from runtime.scheduling.strategy import DecodingContext
from runtime.strategies.registry import make_strategy
from runtime.worker import cuda_graph_runner, warmup
from runtime.worker.cuda_graph_runner import CudaGraphRunner, used_outside_allocator
from runtime.worker.graph_padding import (
    CaptureSizes,
    Views,
    capture_batch_sizes,
    forward_buffer_specs,
    pad_forward_inputs,
    pad_sample_inputs,
    pad_sampled_rows,
    sample_buffer_specs,
)
from runtime.worker.input_batch import AlgorithmDescriptor, ForwardDescriptor, SampleDescriptor
from runtime.worker.memory import capture_sizes_for
from runtime.worker.model_runner import RunnerStats
from runtime.worker.warmup import READY_REQUESTS, split_captures
from tests.golden import GOLDEN
from tests.matrix import marked
from tests.request.test_sampling_params import info
from tests.tiles import make_query_tiles
from tests.worker.replays import SMALL, Served, answers_between, check, pretending, served

# `make test-rest` runs the others.
QUICK = ("sdar_moe-sdar_moe-multi_bd-4-1",)


@pytest.mark.parametrize("each", marked(served(once=True), quick=QUICK))
def test_padded_steps_give_the_same_answers(each: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """With every algorithm for the first checkpoint, whose steps are the fastest."""
    with pretending(monkeypatch):
        check(each, 2, every=each == Served("llada2_tiny"), device="cpu", dtype="float64")


@pytest.mark.slow
@pytest.mark.parametrize("each", served())
def test_padded_steps_of_every_checkpoint_give_the_same_answers(each: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    with pretending(monkeypatch):
        check(each, 2, device="cpu", dtype="float64")


def test_capture_sizes_are_few_and_close() -> None:
    sizes = capture_batch_sizes(128)
    assert sizes[0] == 1
    assert sizes[-1] == 128
    assert all(b <= max(a * 1.5, a + 1) for a, b in pairwise(sizes))
    assert len(sizes) < 30
    assert capture_batch_sizes(1) == [1]
    assert [pad_sampled_rows(n, 1024) for n in (0, 1, 128, 129, 1024)] == [0, 128, 128, 256, 1024]
    assert [pad_sampled_rows(n, 32) for n in (1, 17, 32)] == [16, 32, 32]


@pytest.mark.parametrize("max_tokens", [32, 100, 512])
@pytest.mark.parametrize("max_num_reqs", [1, 3, 40, 600])
def test_every_forward_that_fits_has_a_captured_size(max_tokens: int, max_num_reqs: int) -> None:
    sizes = CaptureSizes(
        block_size=8, pages=7, page_size=4, max_tokens=max_tokens, max_num_reqs=max_num_reqs, self_conditioned=True
    )
    recorded = set(sizes.forward_descriptors())
    for rows in range(1, max_tokens // 8 * 8 + 1):
        for tiles in {1, max(1, rows // 8), rows}:
            if -(-rows // tiles) > MAX_TILE_ROWS or tiles > max_num_reqs:
                continue
            descriptor = ForwardDescriptor(rows, tiles, tiles, 3, -(-rows // tiles), 9)
            padded = sizes.pad_forward(descriptor)
            if padded is None:
                assert tiles > rows // 8  # tiles smaller than a block, more of them than complete blocks would need
                continue
            assert padded in recorded
            assert padded.segments >= tiles
            assert padded.tiles >= tiles + -(-(padded.rows - rows) // padded.tile_rows)
    assert sizes.pad_forward(ForwardDescriptor(max_tokens + 8, 1, 1, 1, 8, 8)) is None


@pytest.mark.parametrize("max_num_reqs", [1, 5, 64])
def test_steps_of_complete_blocks_find_a_captured_graph(max_num_reqs: int) -> None:
    """Checks up to the maximum number of requests, each with one block, two, or a prefill chunk, in any mixture."""
    sizes = CaptureSizes(block_size=32, pages=7, page_size=4, max_tokens=8192, max_num_reqs=max_num_reqs)
    recorded = set(sizes.forward_descriptors())
    random = np.random.default_rng(max_num_reqs)
    for largest in (1, 2, 3, 8, 200):
        for requests in {1, max_num_reqs // 2 or 1, max_num_reqs}:
            counts = random.integers(1, largest + 1, requests) * 32
            counts = counts[counts.cumsum() <= 8192]
            tiles = make_query_tiles(counts)
            descriptor = ForwardDescriptor(int(counts.sum()), len(tiles), len(counts), 3, int(tiles[:, 2].max()), 9)
            padded = sizes.pad_forward(descriptor)
            assert padded in recorded
            assert padded.tile_rows <= max(MAX_TILE_ROWS if largest > 2 else 64, 32)


def test_a_block_larger_than_a_tile_is_captured() -> None:
    sizes = CaptureSizes(block_size=512, pages=7, page_size=4, max_tokens=4096, max_num_reqs=3)
    for descriptor in sizes.forward_descriptors():
        pad_forward_inputs(*_empty(descriptor), descriptor)
    counts = np.array([512, 1024, 512])
    descriptor = ForwardDescriptor(2048, 8, 3, 3, MAX_TILE_ROWS, 9)
    assert len(make_query_tiles(counts)) == descriptor.tiles
    assert sizes.pad_forward(descriptor) in set(sizes.forward_descriptors())


def _empty(descriptor: ForwardDescriptor) -> tuple[Views, ForwardDescriptor, Views]:
    """Returns arrays of a descriptor, and an empty forward to pad to it."""
    kinds = forward_buffer_specs(descriptor)
    into = {name: np.zeros(size, dtype) for name, (dtype, size) in kinds.items()}
    nothing = {name: array[:0] for name, array in into.items()}
    return into, ForwardDescriptor(0, 0, 0, descriptor.pages, 0, 0), nothing


def test_captured_forwards_have_no_more_tiles_than_steps() -> None:
    sizes = CaptureSizes(block_size=32, pages=7, page_size=4, max_tokens=8192, max_num_reqs=16)
    assert {descriptor.rows for descriptor in sizes.forward_descriptors() if descriptor.tile_rows == 32} == {
        32 * n for n in capture_batch_sizes(16)
    }
    (largest, *_) = sizes.forward_descriptors()
    assert (largest.rows, largest.tile_rows, largest.tiles, largest.segments) == (8192, MAX_TILE_ROWS, 16 + 32 + 1, 17)


def test_sizes_of_blocks_include_a_padding_block() -> None:
    sizes = CaptureSizes(block_size=8, pages=7, page_size=4, max_tokens=64, max_num_reqs=3)
    group = AlgorithmDescriptor(
        get_algorithm("threshold"), int(LogitStat.NONE), 5, 33, num_random=20, num_filtered=3, history_len=9
    )
    padded = sizes.pad_sample(SampleDescriptor(5, 7, (group,)))
    assert padded is not None
    assert (padded.blocks, padded.size) == (7, 8)
    (larger,) = padded.groups
    assert (larger.blocks, larger.num_filtered, larger.num_random, larger.rows, larger.history_len) == (
        7, 16, 48, 64, 16,
    )  # fmt: skip
    assert sizes.pad_sample(SampleDescriptor(9, 8, (group,))) is None


@pytest.mark.parametrize("rows", [(33, 0), (0, 7), (5, 16), (0, 0)])
def test_rows_behind_the_last_valid_row_are_padding(rows: tuple[int, int]) -> None:
    """The LM head processes no padding rows."""
    sizes = CaptureSizes(block_size=8, pages=7, page_size=4, max_tokens=64, max_num_reqs=3)
    descriptor = SampleDescriptor(6, 8, tuple(AlgorithmDescriptor(get_algorithm("threshold"), 0, 3, n) for n in rows))
    arrays = {name: np.ones(size, dtype) for name, (dtype, size) in sample_buffer_specs(descriptor).items()}
    arrays["block"] = np.repeat([0, 3], rows)
    padded = sizes.pad_sample(descriptor)
    assert padded is not None
    into = {name: np.full(size, 9, dtype) for name, (dtype, size) in sample_buffer_specs(padded).items()}
    pad_sample_inputs(into, descriptor, arrays, padded, sizes)
    (live,) = into["num_valid"]
    assert (into["block"][live:] == padded.blocks - 1).all()
    assert live == (padded.groups[0].rows + rows[1] if rows[1] else rows[0])


def test_sampling_is_captured_for_no_more_blocks_than_can_be_open() -> None:
    few = CaptureSizes(block_size=8, pages=7, page_size=4, max_tokens=512, max_num_reqs=3, max_sampled_blocks=5)
    assert few.rows[-1] == 64 * few.block_size
    assert few.sampled_blocks == [1, 2, 3, 4, 6]  # five are padded to six
    every = CaptureSizes(block_size=8, pages=7, page_size=4, max_tokens=64, max_num_reqs=3)
    assert every.sampled_blocks == [rows // 8 for rows in every.rows]
    assert CaptureSizes(
        block_size=8, pages=7, page_size=4, max_tokens=16, max_num_reqs=3, max_sampled_blocks=99
    ).sampled_blocks == [1, 2]


def test_a_step_of_the_prefill_size_is_captured_with_its_sampling() -> None:
    """32 canvases of 256 positions are 8,192 rows, twice the largest forward of the smaller sizes."""
    facts = msgspec.structs.replace(
        info(), block_size=256, max_num_reqs=32, max_num_batched_tokens=8192, max_model_len=1024
    )
    strategy = make_strategy(
        "diffusion_gemma", ("diffusion_gemma",), DecodingContext(256, None, True, facts.max_model_len)
    )
    sizes = capture_sizes_for(facts, strategy, 40, LoRAManager())
    assert (sizes.max_tokens, sizes.sampled_blocks[-1]) == (4096, 32)
    assert sizes.pad_forward(ForwardDescriptor(8192, 32, 32, 3, 256, 9)) is not None
    algorithm = get_algorithm("noise")
    for blocks, padded_blocks in ((16, 16), (17, 20), (32, 32)):
        group = AlgorithmDescriptor(algorithm, 0, blocks, 256 * blocks)
        padded = sizes.pad_sample(SampleDescriptor(blocks, 256, (group,), uniform_noise=True))
        assert padded is not None
        assert padded.blocks == padded_blocks + 1
        assert padded.rows >= group.rows
    assert sizes.pad_sample(SampleDescriptor(33, 256, (AlgorithmDescriptor(algorithm, 0, 33, 256),))) is None


@pytest.mark.parametrize(("requests", "budget", "rows"), [(1, 8192, 2048), (128, 8192, 4096), (1, 512, 512)])
def test_prefill_sizes_are_captured_for_any_number_of_requests(requests: int, budget: int, rows: int) -> None:
    facts = msgspec.structs.replace(info(), block_size=32, max_num_reqs=requests, max_num_batched_tokens=budget)
    strategy = make_strategy("multi_bd", ("multi_bd",), DecodingContext(32, 2, True, facts.max_model_len))
    sizes = capture_sizes_for(facts, strategy, 4, LoRAManager())
    assert (sizes.max_tokens, sizes.max_sampled_blocks) == (rows, 2 * requests)


def test_steps_up_to_the_budget_are_captured_with_little_padding() -> None:
    sizes = CaptureSizes(block_size=32, pages=7, page_size=4, max_tokens=4096, max_num_reqs=16, max_prefill_tokens=8192)
    recorded = sizes.forward_descriptors()
    assert recorded[0].rows == 8192
    for rows in range(4096, 8193):
        padded = sizes.pad_forward(ForwardDescriptor(rows, 32, 16, 3, MAX_TILE_ROWS, 9))
        assert padded in recorded
        assert padded.rows * 0.93 <= rows <= padded.rows
    assert sizes.pad_forward(ForwardDescriptor(8193, 33, 16, 3, MAX_TILE_ROWS, 9)) is None
    many = CaptureSizes(block_size=32, pages=7, page_size=4, max_tokens=4096, max_num_reqs=128, max_prefill_tokens=8192)
    commits = ForwardDescriptor(8192, 128, 128, 3, 64, 9)  # of all requests at once
    padded = many.pad_forward(commits)
    assert padded is not None
    assert (padded.tile_rows, padded in many.forward_descriptors()) == (64, True)


def load(**flags: object) -> Engine:
    config = EngineConfig.from_flags(
        model=str(GOLDEN / "llada2_tiny"), skip_tokenizer=True, device="cpu", dtype="float64",
        **SMALL | {"max_num_reqs": 16, "max_num_batched_tokens": 512} | flags,
    )  # fmt: skip
    return load_engine(config)


def test_graphs_of_few_requests_are_captured_at_start_and_others_while_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    with pretending(monkeypatch):
        engine = load()
        runner = engine.runner
        assert isinstance(runner, CudaGraphRunner)
        forwards = runner.sizes.forward_descriptors()
        block = runner.block_size

        def captured() -> set[int]:
            return {descriptor.rows for descriptor in runner._graphs if isinstance(descriptor, ForwardDescriptor)}

        few = {descriptor.rows for descriptor in forwards if descriptor.rows <= 2 * READY_REQUESTS * block}
        assert captured() == few | {forwards[0].rows}
        pending = runner.stats.graphs_pending
        assert pending == engine.stats().graphs_pending > 0
        order = []
        while runner.stats.graphs_pending:
            before = set(runner._graphs)
            more = engine.capture_next()
            (descriptor,) = set(runner._graphs) - before
            order.append(
                descriptor.rows // (2 * block) if isinstance(descriptor, ForwardDescriptor) else descriptor.blocks - 1
            )
            assert more == (runner.stats.graphs_pending > 0)
        assert len(order) == pending
        assert order == sorted(order)
        assert set(forwards) <= set(runner._graphs)
        assert not engine.capture_next()
        engine.close()


def test_graphs_captured_between_steps_change_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """They overwrite the results of a forward that was launched early."""
    cpu = {"device": "cpu", "dtype": "float64"}
    with pretending(monkeypatch):
        assert answers_between(captures=True, **cpu) == answers_between(captures=False, **cpu)


def test_the_estimate_of_graph_memory_extrapolates_a_few_captures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs that needed no further driver memory count as one chunk per `MEASURED_CAPTURES` graphs."""
    with pretending(monkeypatch):
        engine = load()
        runner = engine.runner
        assert isinstance(runner, CudaGraphRunner)
        num_samples = len(warmup._descriptors(runner, engine.info)[1])
        num_forwards = len(runner.sizes.forward_descriptors())
        runner.discard_graphs()
        used, chunk = [0, 0], warmup.CHUNK_BYTES

        def capture(descriptor: object) -> None:
            if isinstance(descriptor, ForwardDescriptor):
                used[0] += 4 * chunk

        monkeypatch.setattr(runner, "capture_graph", capture)
        monkeypatch.setattr(warmup, "_used_bytes", lambda device: tuple(used))
        expected = 4 * chunk + 4 * chunk * (num_forwards - 1) + chunk * (num_samples - 1) // warmup.MEASURED_CAPTURES
        assert warmup.estimate_graph_bytes(runner, engine.info) == expected
        engine.close()


def test_memory_of_later_graphs_excludes_the_cache_of_the_allocator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (30, 100))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 50)
    assert used_outside_allocator(torch.device("cuda")) == 20
    assert used_outside_allocator(torch.device("cpu")) == 0
    used = iter([100, 130, 130, 125])
    monkeypatch.setattr(cuda_graph_runner, "used_outside_allocator", lambda device: next(used))
    with pretending(monkeypatch):
        engine = load()
        before = engine.runner.stats.graph_bytes
        for more in (30, 30):
            engine.capture_next()
            assert engine.runner.stats.graph_bytes - before == more
        engine.close()


def test_an_llm_captures_all_graphs_at_start(monkeypatch: pytest.MonkeyPatch) -> None:
    with pretending(monkeypatch), LLM.from_engine(load()) as llm:
        assert llm.engine.runner.stats.graphs_pending == 0


def test_a_step_captures_a_pending_graph_at_its_first_use_and_no_second_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with pretending(monkeypatch):
        monkeypatch.setattr(warmup, "READY_REQUESTS", 0)  # leaves all but the largest for later
        engine = load()
        runner = engine.runner
        assert isinstance(runner, CudaGraphRunner)
        captures: list[int] = []
        per_step: list[int] = []
        runner.capture = lambda work: (captures.append(1), work)[1]
        pending = runner.stats.graphs_pending
        engine.add(RequestSpec(id="one", prompt=[5, 6, 7], max_tokens=16, ignore_eos=True, decoding=slow(engine)))
        while engine.has_work():
            engine.step()
            per_step.append(len(captures))
            captures.clear()
        assert set(per_step) <= {0, 1}
        assert per_step[0] == 1  # a descriptor that is not pending is captured in its third step
        assert runner.stats.graphs_pending < pending
        engine.close()


def slow(engine: Engine) -> DecodingParams:
    """Returns parameters that unmask one token per step."""
    defaults = engine.info.defaults("threshold")
    return msgspec.structs.replace(defaults, values=defaults.values | {"accept_threshold": 1.0})


def test_rank_0_sends_a_capture_before_its_own() -> None:
    """Captured steps have collective operations, so the ranks have to capture together."""
    events: list[str] = []

    class Rank:
        stats = RunnerStats()
        overlaps = launches_next = False
        must_split = results = None

        def capture_next(self) -> int:
            events.append("capture")
            return 3

    executor = SimpleNamespace(
        broadcast=lambda message, *_: events.append(type(message).__name__), step_guard=nullcontext
    )
    assert DistributedRunner(Rank(), executor).capture_next() == 3  # type: ignore[arg-type]
    assert events == ["CaptureGraph", "capture"]


def test_ranks_plan_the_same_captures() -> None:
    sizes = CaptureSizes(block_size=32, pages=7, page_size=4, max_tokens=4096, max_num_reqs=64)
    forwards = sizes.forward_descriptors()
    one, other = (split_captures(list(forwards), [], 32) for _ in range(2))
    assert one == other
    first, later = one
    assert first[0] == forwards[0]
    assert set(first) | set(later) == set(forwards)
    assert len(first) + len(later) == len(forwards)

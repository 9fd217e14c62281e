"""Small engines that tests run step by step, and checks after every step.

The oracle's `Shape` and `Params` describe the settings of the server and the parameters of a request.
"""

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self
from unittest.mock import patch

import numpy as np
import torch
from hypothesis import reject

from runtime.algorithms.base import EditTokens, algorithms_for, algorithms_with_edit_tokens, get_algorithm
from runtime.engine.engine import Engine
from runtime.layers.kv_pool import UnifiedPool
from runtime.models.base import Model
from runtime.request.block_layout import BlockLayout
from runtime.request.engine_messages import DecodingParams, EngineInfo, EngineOutput, LogitsProcessorParams, RequestSpec
from runtime.request.field_spec import AlgorithmInfo, with_defaults
from runtime.scheduling.request import Request
from runtime.scheduling.scheduler import StepTimeEstimator
from runtime.scheduling.step_plan import REMASKED, STATE_BITS, DenoiseBlocks, StepPlan
from runtime.scheduling.strategy import DecodingContext, max_request_len, max_request_pages
from runtime.strategies.multi_bd import MultiBlock
from runtime.strategies.registry import make_strategy
from runtime.worker.candidates import SamplerConfig
from runtime.worker.cuda_graph_runner import CudaGraphRunner, run_eagerly
from runtime.worker.graph_padding import CaptureSizes
from runtime.worker.model_runner import ModelRunner
from runtime.worker.next_step import NextStep
from tests.engine.hash_model import HashedEmbeddings, HashMemory, HashModel, digests, flat, hash_logits
from tests.oracle.block import Params, banned
from tests.oracle.block import Shape as OracleShape
from tests.oracle.decode import LogitsOf, Result, decode
from tests.oracle.dmax import Model as Embedded
from tests.oracle.dmax import decode_dmax
from tests.oracle.draws import Choice, choose
from tests.oracle.full import decode_full
from tests.oracle.insert_delete import UnclearError
from tests.oracle.masks import block_causal_ends, prefix_causal_ends, prefix_full_ends
from tests.oracle.seeded import decode_seeded


@dataclass(frozen=True, kw_only=True)
class Setup:
    """Settings of the server."""

    strategy: str = "multi_bd"
    shift: bool = False  # d2f and full: the family's logits shift; fast_dllm_v2 always has one
    block: int = 4
    buffer: int = 1
    page: int = 4
    pages: int = 64
    budget: int = 64
    max_reqs: int = 8
    max_len: int = 64
    prefix_caching: bool = True
    vocab: int = 16
    eos: tuple[int, ...] = (3,)
    mask: int = 13
    max_token: int = 14
    orders: tuple[int, int] | None = None  # the model's DELETE and SPLIT
    replayed: bool = False  # steps are padded to captured sizes, as on a GPU
    shared_rows: int = 10**6  # most rows of a step of several tenants or groups, one with several requests

    @property
    def oracle(self) -> OracleShape:
        from_prompt = self.strategy in ("d2f", "nemotron_diffusion")
        shift = int(self.shift or self.strategy == "fast_dllm_v2")
        return OracleShape(
            self.block, self.buffer, self.mask, frozenset(self.eos), self.max_token, from_prompt, shift, self.orders
        )  # fmt: skip

    @property
    def seeded(self) -> bool:
        return self.strategy in ("fast_dllm_v2", "nemotron_diffusion")

    def ends(self, prompt: int, length: int) -> list[int]:
        """Returns the `visible_end` of `length` final positions."""
        if self.strategy == "d2f":
            return prefix_full_ends(length, self.block, prompt)
        if self.strategy == "nemotron_diffusion":
            return prefix_causal_ends(length, length)
        return block_causal_ends(length, self.block)


@dataclass(frozen=True)
class Ask:
    """One request of a run."""

    prompt: tuple[int, ...]
    params: Params
    report: str = "denoise"
    pinned: tuple[tuple[int, int], ...] = ()  # (offset in the answer, token id)
    logprobs: int | None = None
    salt: str = ""
    group: str = ""
    owner: str = ""
    alone: bool = False
    step_map: bool = False
    processed: bool = False  # its logprobs
    candidates: int = 0

    @property
    def pinned_by_offset(self) -> dict[int, int]:
        """The pinned tokens within the answer, by offset."""
        return {offset: token for offset, token in self.pinned if offset < self.params.max_tokens}


class ConstantStepTime(StepTimeEstimator):
    """Ignores the time of steps, so that a run can be repeated."""

    def __init__(self, rows: int) -> None:
        super().__init__(rows)
        self.rows = rows

    def max_rows(self, budget: int) -> int:
        return min(self.rows, budget)


class CheckedRunner(ModelRunner):
    """Checks each plan before it runs."""

    engine: Engine

    def launch_forward(self, plan: StepPlan) -> None:
        if not self.began(plan):
            self.check(plan)
        super().launch_forward(plan)

    def began(self, plan: StepPlan) -> bool:
        """Returns whether the forward was launched early. Then it was checked with the plan before this one."""
        return False

    def check(self, plan: StepPlan) -> None:
        cache, info = self.engine.cache, self.engine.info
        assert 0 < plan.num_rows <= info.max_num_batched_tokens
        slots = self.batch(replace(plan, writes=())).slots  # a plan is checked again if its forward is launched again
        assert len(set(slots.tolist())) == len(slots), "two rows write to one slot"
        scheduler = self.engine.scheduler
        served = [request for request in scheduler.running if request.last_served_step == scheduler._step]
        alone = any(request.spec.decoding.force_single_batch for request in served)
        assert len(plan.segments) == len(served) == 1 or not alone
        for page_group in set((slots // cache.page_group_size).tolist()):
            assert cache._refs[page_group] == 1, "the step writes to a shared page"
            assert page_group not in cache._key_of, "the step writes to a final page of the prefix cache"

    def launch_sampling(self, blocks: DenoiseBlocks | None, following: NextStep | None = None) -> None:
        if blocks is not None:
            self.check_states()
        super().launch_sampling(blocks, following)

    def check_states(self) -> None:
        """Asserts that the runner has the tokens and states of all requests that were in a step."""
        for request in self.engine.scheduler.running:
            if not request.pending_writes:
                entries = self.states.entries(request.req_slot, np.arange(len(request.tokens)))
                states = self.states.states[entries].numpy()
                assert self.states.tokens[entries].tolist() == request.tokens.tolist()
                assert (states & STATE_BITS).tolist() == request.state.tolist()
                for block in request.blocks:
                    remasked = states[block.start : block.start + block.size] & REMASKED > 0
                    assert remasked.tolist() == (
                        [False] * block.size if block.memory.remasked is None else block.memory.remasked.tolist()
                    )
        assert (self.states.tokens[0], self.states.states[0]) == (0, 0)


class CheckedReplayingRunner(CheckedRunner, CudaGraphRunner):
    """The same checks for a runner that pads steps to captured sizes."""

    def began(self, plan: StepPlan) -> bool:
        return self.has_launched(plan)

    def launch_next(self) -> StepPlan | None:
        plan = self.next_plan()
        if plan is not None:
            self.check(plan)
            held = {each.req_slot: each.kv.num_allocated_tokens for each in self.engine.scheduler.running}
            assert all(start + count <= held[slot] for slot, start, count in plan.segments[:, :3].tolist())
        return super().launch_next()


def make_engine(setup: Setup, model: Model | None = None) -> Engine:
    """Returns an engine with a float64 pool around `model`, by default the hash model."""
    model = model or HashModel(setup.vocab)
    context = DecodingContext(setup.block, setup.buffer, setup.prefix_caching, setup.max_len, setup.shift)
    strategy = make_strategy(setup.strategy, (setup.strategy,), context)
    orders = None if setup.orders is None else EditTokens(*setup.orders)
    rule = algorithms_with_edit_tokens(orders)
    info = EngineInfo(
        family="none", strategy=setup.strategy, device="cpu", dtype="float64", vocab_size=setup.vocab,
        max_token_id=setup.max_token, mask_token_id=setup.mask, eos_token_ids=list(setup.eos),
        delete_token_id=None if orders is None else orders.delete,
        split_token_id=None if orders is None else orders.split,
        block_size=setup.block, buffer_size=setup.buffer, page_size=setup.page, num_pages=setup.pages,
        max_model_len=setup.max_len, max_num_reqs=setup.max_reqs, max_num_batched_tokens=setup.budget,
        prefix_caching=setup.prefix_caching and strategy.prefix_cacheable,
        blocks_from_prompt=strategy.block_layout.from_prompt, truncate_last_block=strategy.block_layout.truncate_last,
        strategy_fields=list(with_defaults(strategy.fields, setup.block)),
        algorithms=[AlgorithmInfo(key=each.key, fields=with_defaults(rule(each.key).fields, setup.block))
                    for each in algorithms_for(setup.strategy)],
        default_algorithm="dmax" if setup.strategy == "dmax" else "threshold",
    )  # fmt: skip
    pool = UnifiedPool(model.kv_shapes, num_pages=setup.pages, page_size=setup.page, dtype=torch.float64, device="cpu")
    width = max_request_pages(strategy, setup.max_len, setup.page)
    config = SamplerConfig(
        setup.block, setup.mask, setup.max_token, setup.eos, orders, setup.max_reqs,
        max_request_len=max_request_len(strategy, setup.max_len), max_request_pages=width,
    )  # fmt: skip
    runner: CheckedRunner
    if setup.replayed:
        sizes = CaptureSizes(setup.block, width, setup.page, max(setup.budget // 2, setup.block), setup.max_reqs)
        runner = CheckedReplayingRunner(model, pool, config, sizes, run_eagerly, capture_after=2)
    else:
        runner = CheckedRunner(model, pool, config)
    runner.engine = Engine(info=info, runner=runner, strategy=strategy)
    runner.engine.scheduler.step_time = ConstantStepTime(setup.shared_rows)
    return runner.engine


def decoding_of(p: Params) -> dict[str, Any]:
    """Returns the values of the fields that multi_bd and the request's algorithm declare."""
    names = [field.name for field in (*MultiBlock.fields, *get_algorithm(p.algorithm).fields)]
    return {name: getattr(p, name.replace(".", "_")) for name in names}


def logits_processor_params(p: Params) -> LogitsProcessorParams | None:
    """Returns the logits processor parameters that `runtime.request.resolve` would return."""
    found = LogitsProcessorParams(
        bias=dict(p.logit_bias), repetition=p.repetition_penalty, presence=p.presence_penalty,
        frequency=p.frequency_penalty, min_tokens=p.min_tokens,
    )  # fmt: skip
    return None if found == LogitsProcessorParams() else found


def blocks_of(setup: Setup, ask: Ask) -> BlockLayout:
    """Returns the positions of the blocks of a request."""
    full = setup.strategy == "full"
    return BlockLayout(ask.params.block_length if full else setup.block, setup.oracle.from_prompt or full, full)


def spec_of(id: str, ask: Ask, blocks: BlockLayout | None = None) -> RequestSpec:
    """Returns the request that `runtime.request.resolve` would return, with the fields of all strategies."""
    p = ask.params
    others = {name: getattr(p, name) for name in ("cache", "block_length", "sub_block_size", "block_cache")}
    return RequestSpec(
        id=id, prompt=list(ask.prompt), max_tokens=p.max_tokens, temperature=p.temperature, top_p=p.top_p,
        top_k=p.top_k, min_p=p.min_p, stop_ids=list(p.stop_token_ids), logits_processors=logits_processor_params(p),
        seed=p.seed % 2**64, ignore_eos=p.ignore_eos, max_nfe=p.max_nfe, max_repetition_run=p.max_repetition_run,
        decoding=DecodingParams(algorithm=p.algorithm, values=decoding_of(p) | others, total_steps=p.total_steps,
                                force_single_batch=ask.alone),
        pinned_tokens=ask.pinned_by_offset, logprobs=ask.logprobs, step_map=blocks, cache_salt=ask.salt,
        processed_logprobs=ask.processed, stream_candidates=ask.candidates if ask.report == "denoise" else 0,
        parent_id=ask.group, tenant=ask.owner, stream_mode=ask.report,  # type: ignore[arg-type]
    )  # fmt: skip


def expected(setup: Setup, ask: Ask, logits_of: LogitsOf | None = None, embedded: Embedded | None = None) -> Result:
    """Returns the oracle's answer. `logits_of` (multi_bd) or `embedded` (dmax) replaces the hash model."""
    if setup.strategy == "full":
        return decode_full(HashMemory(setup.vocab), ask.prompt, ask.params, setup.oracle, ask.pinned_by_offset)
    if setup.strategy == "dmax":
        model = embedded or HashedEmbeddings(setup.vocab, setup.block)
        return decode_dmax(model, ask.prompt, ask.params, setup.oracle, ask.pinned_by_offset)
    if setup.seeded:
        return decode_seeded(
            lambda: HashMemory(setup.vocab), ask.prompt, ask.params, setup.oracle, ask.pinned_by_offset
        )
    logits_of = logits_of or hash_logits(setup.vocab, lambda length: setup.ends(len(ask.prompt), length))
    return decode(logits_of, ask.prompt, ask.params, setup.oracle, ask.pinned_by_offset)


@dataclass
class Received:
    """The outputs of one request."""

    outputs: list[EngineOutput] = field(default_factory=list)

    @property
    def tokens(self) -> list[int]:
        return [t for o in self.outputs for t in o.new_tokens]

    @property
    def ended(self) -> bool:
        return bool(self.outputs) and self.outputs[-1].finish_reason is not None


def check_received(received: Received, result: Result, report: str, *, complete: bool) -> None:
    """Asserts that the outputs equal the oracle's trace. Without `complete` they may stop before its end."""
    outputs, events = received.outputs, result.events
    assert all(o.finish_reason is None and not o.eos for o in outputs[:-1])
    assert all(o.error is None for o in outputs), outputs[-1].error
    if report == "final":
        shown = events[-1:] if complete else []
    elif report == "stable":
        shown = [e for e in events if e.new_tokens or e is events[-1]]
    else:
        shown = events
    assert len(outputs) == len(shown) if complete else len(outputs) <= len(shown)
    for o, e in zip(outputs, shown, strict=False):
        assert o.nfe == e.nfe
        if report != "final":
            assert o.new_tokens == e.new_tokens
        if report == "denoise":
            assert (o.start, o.tokens, o.masked) == (e.start, e.tokens, e.masked)
    if complete:
        last = outputs[-1]
        assert (received.tokens, last.nfe, last.finish_reason) == (result.tokens, result.nfe, result.finish_reason)
        assert last.eos == (result.finish_reason == "stop")


Distributions = dict[tuple[int, int], np.ndarray]  # by position and number of earlier steps


def distributions(setup: Setup, ask: Ask, logits_of: LogitsOf | None) -> Distributions:
    """Returns the probabilities from which the oracle draws the candidate of each masked position in each step."""
    logits_of = logits_of or hash_logits(setup.vocab, lambda length: setup.ends(len(ask.prompt), length))
    found: Distributions = {}

    def watched(*args: Any) -> Choice:
        choice = choose(*args)
        assert choice.probs is not None
        found[args[5], args[6]] = choice.probs
        return choice

    with patch("tests.oracle.block.choose", watched):
        decode(logits_of, ask.prompt, ask.params, setup.oracle, ask.pinned_by_offset)
    return found


def best_tokens(probs: np.ndarray, count: int) -> list[int]:
    return [id for id in sorted(range(len(probs)), key=lambda id: (-probs[id], id))[:count] if probs[id] > 0]


def check_candidates(received: Received, result: Result, ask: Ask, drawn: Distributions) -> None:
    """Asserts that denoise events have the candidates of masked positions, and their probabilities."""
    for output, event in zip(received.outputs, result.events, strict=False):
        assert output.candidates is not None
        assert output.confidence is not None
        for offset, ids, values in zip(event.masked, output.candidates, output.confidence, strict=True):
            probs = drawn.get((event.start + offset, event.nfe - 1))
            if probs is None:  # masked again in this step, or not sampled in it
                assert ask.params.revises or not ids
                continue
            assert ids == best_tokens(probs, ask.candidates)
            np.testing.assert_allclose(values, probs[ids], atol=1e-9)


def check_processed(received: Received, result: Result, ask: Ask, drawn: Distributions) -> None:
    """Asserts that the log-probabilities are those of the distributions that the tokens were drawn from."""
    last = last_steps(result, ask)
    values = [value for output in received.outputs for value in output.logprobs.values]
    tops = [pair for output in received.outputs for pair in zip(output.logprobs.ids, output.logprobs.tops, strict=True)]
    for at, (token, value, top) in enumerate(zip(received.tokens, values, tops, strict=False), len(ask.prompt)):
        if (at, last.get(at, 0) - 1) in drawn:  # otherwise it is pinned, or was edited
            probs = drawn[at, last[at] - 1]
            np.testing.assert_allclose(np.exp(value), probs[token], atol=1e-9)
            best = best_tokens(probs, ask.logprobs or 0)
            assert [id for id, other in zip(*top, strict=True) if other > -9999] == best
            np.testing.assert_allclose(np.exp(top[1][: len(best)]), probs[best], atol=1e-9)


def last_steps(result: Result, ask: Ask) -> dict[int, int]:
    """Returns the step of the last change of each position."""
    last: dict[int, int] = {}
    shown: dict[int, tuple[int, bool]] = {}
    for event in result.events:
        for at, token in enumerate(event.tokens, event.start):
            content = token, at - event.start in event.masked
            if content != shown.get(at, (token, True)) and not content[1] and at >= len(ask.prompt):
                last[at] = event.nfe
            shown[at] = content
    return last


def check_logprobs(received: Received, setup: Setup, ask: Ask, logits_of: LogitsOf | None) -> None:
    """Asserts that log-probabilities are those of the step that last wrote the position, before logits processors.

    For strategies without a naive decoder that forwards complete sequences, only their number is checked.
    """
    logprobs = []
    for output in received.outputs:
        assert output.logprobs is not None
        logprobs.append(output.logprobs)
        assert len(logprobs[-1].values) == len(output.new_tokens) + output.eos
        assert (logprobs[-1].end is not None) == output.eos
    values = [value for one in logprobs for value in one.values]
    if setup.strategy not in ("multi_bd", "d2f"):
        return
    prompt = len(ask.prompt)
    logits_of = logits_of or hash_logits(setup.vocab, lambda length: setup.ends(prompt, length))
    looks: list[tuple[list[int], np.ndarray]] = []

    def seen(ids: Sequence[int]) -> np.ndarray:
        looks.append((list(ids), banned(logits_of(ids), setup.oracle)))
        return looks[-1][1]

    result = decode(seen, ask.prompt, ask.params, setup.oracle, ask.pinned_by_offset)
    looks.append((result.sequence, np.empty(0)))
    rows: dict[int, tuple[int, np.ndarray]] = {}
    for (before, logits), (after, _) in itertools.pairwise(looks):
        for at in range(prompt, len(before)):
            if after[at] != before[at] and after[at] != setup.mask and at - prompt not in ask.pinned_by_offset:
                rows[at] = after[at], logits[at - setup.oracle.shift]
    tokens = [*received.tokens, *(one.end for one in logprobs if one.end is not None)]
    tops = [
        list(zip(*pair, strict=True))[: setup.vocab] for one in logprobs for pair in zip(one.ids, one.tops, strict=True)
    ]
    for at, (token, value, top) in enumerate(zip(tokens, values, tops, strict=True), prompt):
        if at - prompt in ask.pinned_by_offset:
            assert value == -9999.0
            continue
        written, row = rows[at]
        assert written == token
        expect = np.maximum(row - np.log(np.exp(row - row.max()).sum()) - row.max(), -9999.0)
        best = sorted(range(len(row)), key=lambda id: (-row[id], id))[: ask.logprobs]
        np.testing.assert_allclose(value, expect[token], atol=1e-9)
        assert [id for id, other in top if other > -9999] == [id for id in best if expect[id] > -9999]
        np.testing.assert_allclose([other for _, other in top], expect[best], atol=1e-9)


def check_step_map(received: Received, result: Result, setup: Setup, ask: Ask) -> None:
    """Asserts that the steps of all tokens are those of the oracle's trace, and the ordinals SGLang's step map.

    SGLang has no algorithm that revises tokens, and no strategy that samples the first token of a block beforehand.
    """
    blocks = blocks_of(setup, ask)
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    shown: dict[int, tuple[int, bool]] = {}
    ordinals: dict[int, int] = {}  # by SGLang's rule: each block counts its own steps that unmasked something
    counts: Counter[int] = Counter()
    prompt = len(ask.prompt)
    for event in result.events:
        unmasked: dict[int, list[int]] = {}
        for at, token in enumerate(event.tokens, event.start):
            if at < prompt or at - prompt in ask.pinned_by_offset:
                continue
            masked = at - event.start in event.masked
            before, was_masked = shown.get(at, (token, True))
            if not masked and (was_masked or token != before):
                last[at] = max(event.nfe, 1)
                first.setdefault(at, last[at])
                if was_masked and at not in ordinals:
                    unmasked.setdefault(blocks.block_start(prompt, at), []).append(at)
            shown[at] = token, masked
        for block, positions in unmasked.items():
            counts[block] += 1
            ordinals |= dict.fromkeys(positions, counts[block])
    steps = [output.steps for output in received.outputs]
    assert all(each is not None and len(each.first) == len(each.ordinals) for each in steps)
    where = range(prompt, prompt + len(received.tokens))
    assert [n for each in steps for n in each.first] == [first.get(at, 0) for at in where]
    if ask.params.revises:
        assert [n for each in steps for n in each.last] == [last.get(at, 0) for at in where]
    elif not setup.seeded:
        assert [n for each in steps for n in each.ordinals] == [ordinals.get(at, 0) for at in where]


def page_tables(engine: Engine) -> np.ndarray:
    """Returns the page tables that the runner has, with the changes that it will get, int32 [slots, pages]."""
    runner: ModelRunner = getattr(engine.runner, "local", engine.runner)  # type: ignore[assignment]
    tables = runner.states.pages.numpy().copy()
    for row, changes in engine.table._pending.items():
        tables[row, list(changes)] = list(changes.values())
    return tables


def check_accounting(engine: Engine) -> None:
    """Asserts that every page group is either free, in use or cached, and that all reference counts are right."""
    cache, scheduler = engine.cache, engine.scheduler
    held = Counter(page_group for request in scheduler.running for page_group in request.kv.page_groups)
    free, idle = set(cache._free), set(cache._idle)
    assert len(free) == len(cache._free)
    assert not free & idle
    assert not (free | idle) & set(held)
    assert free | idle | set(held) == set(range(cache.num_page_groups))
    assert [held[page_group] for page_group in range(cache.num_page_groups)] == cache._refs
    assert idle <= set(cache._key_of)
    assert {page_group: key for key, page_group in cache._by_key.items()} == cache._key_of
    tables = page_tables(engine)
    for request in scheduler.running:
        assert len(set(request.kv.page_groups)) == len(request.kv.page_groups)
        assert request.num_computed_tokens <= len(request.kv.page_groups) * cache.page_group_size
        n = len(request.kv.page_groups) * cache.pages_per_group
        pages = [
            page_group * cache.pages_per_group + i
            for page_group in request.kv.page_groups
            for i in range(cache.pages_per_group)
        ]
        assert tables[request.req_slot, :n].tolist() == pages
    assert scheduler.running == sorted(scheduler.running, key=lambda request: request.arrival_index)
    rows = [request.req_slot for request in scheduler.running]
    assert sorted(rows + engine.table._free_rows) == list(range(engine.info.max_num_reqs))
    assert all(not r.kv.page_groups and r.req_slot == -1 and r.num_computed_tokens == 0 for r in scheduler.waiting)
    check_queue(engine)
    stats = engine.stats()
    assert stats.pages_used == len(held) * cache.pages_per_group
    assert stats.pages_cached == len(idle) * cache.pages_per_group


def check_queue(engine: Engine) -> None:
    """Asserts that the queue has the right counts of running requests and the right first request."""
    scheduler = engine.scheduler
    queue, running = scheduler.waiting, scheduler.running
    waiting: dict[tuple[str, str], list[Request]] = {}
    for request in queue:
        waiting.setdefault((request.spec.tenant, request.spec.parent_id), []).append(request)
    assert len(queue) == sum(map(len, waiting.values()))
    counts = Counter((r.spec.tenant, r.spec.parent_id) for r in running)
    owners = Counter(r.spec.tenant for r in running)
    for request in (*running, *queue):
        group = (request.spec.tenant, request.spec.parent_id)
        assert queue.running_counts(request) == (owners[group[0]], counts[group])
    assert queue.num_competing == (len(owners) if len(owners) > 1 else len(counts))
    for group, members in waiting.items():
        order = [r.arrival_index for r in running if (r.spec.tenant, r.spec.parent_id) == group] + [
            r.arrival_index for r in members
        ]
        assert order == sorted(order)
    if waiting:
        first = queue.first()
        group = (first.spec.tenant, first.spec.parent_id)
        assert first is waiting[group][0]
        assert owners[group[0]] == min(owners[owner] for owner, _ in waiting)
        assert counts[group] == min(n for (owner, _), n in _counts(waiting, counts) if owner == group[0])
    else:
        assert not queue._tenants.waiting
    assert set(queue._groups) == {owner for owner, _ in waiting} | set(owners)


def _counts(waiting: Iterable[tuple[str, str]], counts: Counter[tuple[str, str]]) -> list[tuple[tuple[str, str], int]]:
    return [(group, counts[group]) for group in waiting]


def check_cached(engine: Engine, request: Request, setup: Setup) -> None:
    """Checks docs/research/decoding-rules.md#invariant-3-cached-keys-and-values on the hash model."""
    info, pool = engine.info, engine.runner.pool  # type: ignore[attr-defined]
    at = np.arange(request.num_computed_tokens)
    pages = page_tables(engine)[request.req_slot][at // info.page_size].astype(np.int64)
    slots = pages * info.page_size + at % info.page_size
    tokens = request.tokens[: request.num_computed_tokens]
    assert flat(pool.layer(0).k)[slots].tolist() == tokens.tolist()
    ends = setup.ends(request.prompt_len, request.num_computed_tokens)
    assert flat(pool.layer(1).k)[slots].tolist() == digests(tokens, ends, range(len(ends)))
    if setup.strategy == "full":
        assert request.num_computed_tokens == 0
    elif setup.strategy != "nemotron_diffusion":
        count = request.num_computed_tokens
        assert not count or (count - setup.oracle.first(request.prompt_len)) % setup.block == 0


def check_idle(engine: Engine) -> None:
    """Asserts that there are no requests, and that no pages are in use."""
    assert not engine.has_work()
    assert not engine._requests
    check_accounting(engine)
    assert engine.cache.pages_used == 0
    assert len(engine.table._free_rows) == engine.info.max_num_reqs


class Run:
    """Runs an engine, collects the outputs of its requests, and checks the engine after every step.

    Args:
        setup: Settings of the server.
        engine: The engine; by default a new one on the hash model.
        logits_of: The engine's model for the oracle of multi_bd; by default the hash model.
        embedded: The engine's model for the oracle of dmax; by default the hash model.
    """

    def __init__(
        self, setup: Setup, engine: Engine | None = None, logits_of: LogitsOf | None = None,
        embedded: Embedded | None = None,
    ) -> None:  # fmt: skip
        self.setup = setup
        self.hashed = engine is None
        self.engine = engine or make_engine(setup)
        self.logits_of = logits_of
        self.embedded = embedded
        self.asks: dict[str, Ask] = {}
        self.received: dict[str, Received] = {}
        self.aborted: set[str] = set()
        self._checked: dict[int, int] = {}
        self._before = self.engine.stats()  # of earlier runs with the same engine
        self.counts: dict[str, tuple[int, int]] = {}  # tokens and forwards of each request, as its last output has them

    def add(self, ask: Ask) -> str:
        id = f"r{len(self.asks)}"
        self.asks[id], self.received[id] = ask, Received()
        self.engine.add(spec_of(id, ask, blocks_of(self.setup, ask) if ask.step_map else None))
        return id

    def abort(self, id: str) -> None:
        if (last := self.engine.abort(id)) is not None:
            self.counts[id] = last.generated, last.forwards
        if not self.received[id].ended:
            self.aborted.add(id)
        check_accounting(self.engine)

    def step(self) -> None:
        for output in self.engine.step():
            received = self.received[output.id]
            assert not received.ended, "an output arrived after the last one of its request"
            assert output.id not in self.aborted, "an output arrived for an aborted request"
            assert output.error is None, output.error
            received.outputs.append(output)
            self.counts[output.id] = output.generated, output.forwards
        check_accounting(self.engine)
        if self.hashed:
            for request in self.engine.scheduler.running:
                if self._checked.get(request.arrival_index) != request.num_computed_tokens:
                    check_cached(self.engine, request, self.setup)
                    self._checked[request.arrival_index] = request.num_computed_tokens

    def drain(self, limit: int = 5000) -> None:
        for _ in range(limit):
            if not self.engine.has_work():
                break
            self.step()
        check_idle(self.engine)
        assert all(received.ended or id in self.aborted for id, received in self.received.items())
        stats, before = self.engine.stats(), self._before
        tokens, forwards = (sum(counts) for counts in zip((0, 0), *self.counts.values(), strict=True))
        assert stats.generated_tokens - before.generated_tokens == tokens
        assert stats.forwards_denoise - before.forwards_denoise == forwards

    def compare(self) -> None:
        """Asserts that all outputs equal the oracle's."""
        for id, ask in self.asks.items():
            try:
                result = expected(self.setup, ask, self.logits_of, self.embedded)
            except UnclearError:
                reject()  # an example in which the oracle's answer depends on rounding
            check_received(self.received[id], result, ask.report, complete=self.received[id].ended)
            if ask.step_map:
                check_step_map(self.received[id], result, self.setup, ask)
            drawn: Distributions = {}
            if self.setup.strategy in ("multi_bd", "d2f") and (ask.processed or ask.candidates):
                drawn = distributions(self.setup, ask, self.logits_of)
            if ask.processed and ask.logprobs is not None:
                check_processed(self.received[id], result, ask, drawn)
            elif ask.logprobs is not None:
                check_logprobs(self.received[id], self.setup, ask, self.logits_of)
            if ask.candidates and ask.report == "denoise" and drawn:
                check_candidates(self.received[id], result, ask, drawn)

    def finish(self, *asks: Ask) -> Self:
        """Adds requests, runs the engine to the end, and asserts that all outputs equal the oracle's."""
        for ask in asks:
            self.add(ask)
        self.drain()
        self.compare()
        return self


def run_all(setup: Setup, asks: Iterable[Ask]) -> Run:
    """Runs all requests at once on an engine on the hash model, see `Run.finish`."""
    return Run(setup).finish(*asks)


def run_schedule(
    run: Run, arrivals: Iterable[tuple[int, Ask]], aborts: Iterable[tuple[int, int]], preemptions: Iterable[int] = (),
) -> None:  # fmt: skip
    """Runs a schedule to the end, and asserts that all outputs equal the oracle's.

    Args:
        run: The engine.
        arrivals: (step, request).
        aborts: (step, number of the request).
        preemptions: Steps before which a request is preempted, in addition to the engine's own preemptions.
    """
    pending = sorted(arrivals, key=lambda arrival: arrival[0])
    for step in range(5000):
        while pending and pending[0][0] <= step:
            run.add(pending.pop(0)[1])
        for at, n in aborts:
            if at == step and f"r{n}" in run.asks:
                run.abort(f"r{n}")
        if not pending and not run.engine.has_work():
            break
        if step in preemptions and run.engine.scheduler.running:
            run.engine.scheduler._preempt(run.engine.scheduler._preemption_victim())
            check_accounting(run.engine)
        run.step()
    run.finish()

"""Hypothesis strategies for servers, requests and schedules."""

from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import strategies as st

from runtime.algorithms.base import algorithm_keys, get_algorithm
from runtime.request.field_spec import Field
from tests.engine.harness import Ask, Setup
from tests.oracle.block import Params
from tests.oracle.rules import NAIVE_ALGORITHMS

NAMES = ["multi_bd", "dmax", "full", "d2f", "fast_dllm_v2", "nemotron_diffusion"]
STRATEGIES = pytest.mark.parametrize("strategy", NAMES)
# insert_delete: multi_bd with a model that inserts and deletes (docs/research/decoding-rules.md#insert-and-delete)
SERVERS = pytest.mark.parametrize("strategy", [*NAMES, "insert_delete"])
DELETE, SPLIT = ORDERS = (6, 9)
Scenario = tuple[Setup, list[tuple[int, Ask]], list[tuple[int, int]], list[int]]


ALGORITHMS = [key for key in (*NAIVE_ALGORITHMS, "edit") if key in algorithm_keys()]
# No value is 1/n: n equal logits have this probability except for the last bit, which may differ between oracle and
# engine.
THRESHOLDS = st.sampled_from([0.0, 0.11, 0.3, 0.51, 0.7, 0.9, 1.0])


PARAMS = frozenset(field.name for field in fields(Params))


def values_in_range(field: Field, block: int) -> st.SearchStrategy[Any]:
    """Values that the declaration of a field allows: its default, its limits, and some between them."""
    if field.kind == "flag":
        return st.booleans()
    if field.kind == "choice":
        return st.sampled_from(field.choices)
    default = int(field.default * block) if field.per_block else field.default
    if field.kind == "integer":
        low = int(field.low) + field.above_low
        high = low + 2 * block if field.high is None else min(int(field.high), low + 2 * block)
        allowed = [n for n in range(low, high + 1) if field.divides is None or field.divides % n == 0]
        return st.sampled_from([default, *allowed])
    span = 4.0 if field.high is None else field.high - field.low
    parts = (0.25, 0.5, 0.75, 1.0) if field.above_low else (0.0, 0.25, 0.5, 0.75, 1.0)
    return st.sampled_from([default, *(field.low + part * span for part in parts)])


@st.composite
def other_fields(draw: st.DrawFn, algorithm: str, block: int) -> tuple[tuple[str, Any], ...]:
    """Values of the fields that the algorithm declares and `Params` does not have: `Params.others`."""
    named = [(field.name.replace(".", "_"), field) for field in get_algorithm(algorithm).fields]
    return tuple((name, draw(values_in_range(field, block))) for name, field in named if name not in PARAMS)


@st.composite
def params(draw: st.DrawFn, growing: bool, max_tokens: int, setup: Setup) -> Params:
    """Parameters that `runtime.request.resolve` accepts. Many are small, so that blocks change often."""
    hot = draw(st.booleans())
    editing = [] if setup.seeded or "edit" not in ALGORITHMS else ["edit", "edit"]
    rules = ["threshold", *(key for key in ALGORITHMS if key != "edit"), *editing]
    algorithm = draw(st.sampled_from(rules if setup.strategy != "dmax" else ["dmax"]))
    total = draw(st.sampled_from([None, 20, 33, 64])) if algorithm in ("fixed", "dynamic", "sequential") else None
    return Params(
        max_tokens=draw(st.integers(max_tokens - 8 if growing else 1, max_tokens)),
        temperature=draw(st.sampled_from([0.5, 1.0, 3.0])) if hot else 0.0, top_k=draw(st.sampled_from([0, 1, 3])),
        top_p=draw(st.sampled_from([1.0, 0.9, 0.4])), seed=draw(st.integers(0, 2**64 - 1)),
        min_p=draw(st.sampled_from([0.0, 0.0, 0.13, 0.6, 1.0])),
        **draw(st.one_of(st.just({}), st.just({}), shapes(setup, max_tokens))),
        ignore_eos=growing or draw(st.booleans()),
        max_nfe=None if growing else draw(st.sampled_from([None, None, None, 1, 3, 7])),
        max_repetition_run=None if growing else draw(st.sampled_from([None, None, None, 1, 2, 3])),
        algorithm=algorithm, total_steps=total, accept_threshold=draw(THRESHOLDS), edit_threshold=draw(THRESHOLDS),
        remask_threshold=draw(st.sampled_from([0.0, 0.0, 0.05, 0.3, 0.8])),
        add_block_threshold=draw(st.sampled_from([0.0, 0.1, 0.1, 0.5, 1.0])),
        semi_complete_threshold=draw(st.sampled_from([0.0, 0.5, 0.9, 1.0])),
        token_stability_threshold=draw(st.sampled_from([0.0, 0.0, 0.5, 1.0])),
        max_post_edit_steps=draw(st.integers(0, 5)), penalty_lambda=draw(st.sampled_from([0.0, 0.0, 1.0, 4.0])),
        # with logits that are a hash, few blocks of dmax end before this limit
        max_steps_per_block=draw(st.sampled_from([1, 2, 5, 16, 64] if algorithm != "dmax" else [1, 2, 4, 7])),
        steps=draw(st.integers(1, 9)), step_remainder=draw(st.sampled_from(["first", "spread"])),
        confidence_metric=draw(st.sampled_from(["max_prob", "margin", "neg_entropy"])),
        factor=draw(st.sampled_from([0.0, 0.5, 1.0, 1.7, 3.0])),
        entropy_bound=draw(st.sampled_from([0.0, 0.5, 2.0, 5.0, 100.0])),
        low_threshold=draw(THRESHOLDS), local_leap_anchor=draw(THRESHOLDS), local_leap_neighbor=draw(THRESHOLDS),
        local_leap_radius=draw(st.integers(0, 5)), credit_weight=draw(st.sampled_from([0.0, 0.7, 3.0])),
        credit_decay=draw(st.sampled_from([0.0, 0.8, 1.0])), credit_power=draw(st.sampled_from([0.2, 1.0])),
        suppress_eos=draw(st.sampled_from(["none", "none", "confidence", "logits"])),
        others=draw(other_fields(algorithm, setup.block)), **draw(own_fields(setup)),
    )  # fmt: skip


@st.composite
def shapes(draw: st.DrawFn, setup: Setup, max_tokens: int) -> dict[str, Any]:
    """Values of logits processors and stop tokens. They do not make different logits equal."""
    ids = st.integers(0, setup.max_token)
    biases = st.dictionaries(ids, st.sampled_from([-100.0, -2.3, 1.7, 6.1, 100.0]), max_size=4)
    return {
        "stop_token_ids": tuple(draw(st.lists(ids, max_size=2, unique=True))),
        "min_tokens": draw(st.integers(0, max_tokens)),
        "logit_bias": tuple(draw(biases).items()),
        "repetition_penalty": draw(st.sampled_from([1.0, 1.0, 1.37, 0.71])),
        "presence_penalty": draw(st.sampled_from([0.0, 0.0, 1.13, -0.57])),
        "frequency_penalty": draw(st.sampled_from([0.0, 0.0, 0.91, -0.23])),
    }


@st.composite
def own_fields(draw: st.DrawFn, setup: Setup) -> dict[str, Any]:
    """Fields that only the strategy reads, except for those of multi_bd."""
    if setup.strategy == "fast_dllm_v2":
        sizes = [size for size in range(1, setup.block + 1) if setup.block % size == 0]
        return {"sub_block_size": draw(st.sampled_from(sizes)), "block_cache": draw(st.booleans())}
    if setup.strategy == "full":
        cache = draw(st.sampled_from(["none", "prefix", "dual", "vicinity"]))
        return {"cache": cache, "block_length": draw(st.sampled_from([2, 3, 4, 5, 8, 40]))}
    if setup.strategy == "dmax":
        return {
            "token_merge_mode": draw(st.sampled_from(["dmax_topk", "dmax_topk", "iter_smooth_topk"])),
            "token_merge_top_k": draw(st.sampled_from([1, 1, 2, 3, 20])),
            "token_merge_renormalize": draw(st.booleans()),
            "token_merge_weight": draw(st.sampled_from([0.0, 0.3, 1.0, 2.0])),
        }
    return {}


@st.composite
def setups(
    draw: st.DrawFn, max_len: int = 40, block: int | None = None, buffer: int | None = None, strategy: str = "multi_bd",
    shift: bool | None = None,
) -> Setup:  # fmt: skip
    """Servers with pages smaller and larger than the block. Budgets and pools may just suffice for one request."""
    if strategy == "insert_delete":
        return replace(draw(setups(max_len, block, buffer or draw(st.integers(1, 3)))), orders=ORDERS)
    block = block or draw(st.sampled_from([4, 4, 8, 2]))
    buffer = buffer or draw(st.integers(1, 4)) if strategy in ("multi_bd", "dmax", "d2f") else 1
    least, longest, unit = (buffer + 1) * block, max_len, 1
    if strategy == "full":
        least = max_len
    elif strategy == "d2f":
        least, longest = max(least + 1, max_len - 1), max_len - 1 + block
    elif strategy == "nemotron_diffusion":
        least, longest = block, max_len - 1 + block
    else:
        least, unit = block if strategy == "fast_dllm_v2" else least, block
    page = draw(st.sampled_from([p for p in (1, 2, 3, 4, 8, 16) if p % unit == 0 or unit % p == 0]))
    unit = max(unit, page)
    needed = -(-longest // unit) * (unit // page)
    shifts = strategy in ("d2f", "full")
    return Setup(
        strategy=strategy, shift=shifts and (draw(st.booleans()) if shift is None else shift), block=block,
        buffer=buffer, page=page,
        pages=draw(st.one_of(st.just(needed), st.integers(needed, 2 * needed), st.just(20 * needed))),
        budget=draw(st.one_of(st.integers(least, least + 2 * block), st.just(256))),
        max_reqs=draw(st.sampled_from([1, 4, 8, 8])), max_len=max_len,
        shared_rows=draw(st.sampled_from([10**6, least, 3 * least])), prefix_caching=draw(st.booleans()),
        eos=draw(st.sampled_from([(3,), (3, 7), (0, 2, 5, 9)])), replayed=draw(st.booleans()),
    )  # fmt: skip


@st.composite
def asks(draw: st.DrawFn, setup: Setup) -> Ask:
    """A request that fits the server."""
    growing = draw(st.booleans())  # a short prompt with a long answer: many start together, and then pages run out
    length = draw(st.integers(1, 9 if growing else setup.max_len - 2))
    stem = [1, setup.mask, 2, 3, 1, 4, setup.mask, 5, 6, 0, 2, 2, 9, 8, 7, 12]
    shared = draw(st.sampled_from([0, 4, 8, 13, 16]))
    own = draw(st.integers(0, 3))
    prompt = [stem[i % 16] if i < shared else (i * 5 + own) % 13 for i in range(length)]
    max_tokens = min(setup.max_len - length, 30 if growing else 12)
    offsets = st.integers(0, max_tokens - 1)
    some = st.dictionaries(offsets, st.integers(0, setup.mask), max_size=max_tokens)
    run = st.tuples(offsets, offsets).map(lambda ends: dict.fromkeys(range(min(ends), max(ends) + 1), 5))
    everything = st.just(dict.fromkeys(range(max_tokens), 5))
    p = draw(params(growing, max_tokens=max_tokens, setup=setup))
    if setup.orders and draw(st.sampled_from([True, True, True, False])):
        thresholds = st.sampled_from([0.0, 0.1, 0.3, 0.5, 0.9])
        editing = {"edit_threshold": draw(thresholds), "max_post_edit_steps": draw(st.integers(0, 9))}
        p = replace(p, algorithm="edit", total_steps=None, **editing)
    moves = bool(setup.orders) and p.algorithm == "edit"  # tokens to other positions
    return Ask(
        prompt=tuple(prompt), params=p, step_map=not moves and draw(st.booleans()), processed=draw(st.booleans()),
        candidates=0 if moves else draw(st.sampled_from([0, 0, 1, 3, 20])),
        pinned=tuple(draw(st.one_of(st.just({}), st.just({}), some, run, everything)).items()),
        report=draw(st.sampled_from(["final", "stable", "denoise", "denoise"])),
        logprobs=draw(st.sampled_from([None, None, 0, 3, 20])), salt=draw(st.sampled_from(["", "", "other"])),
        group=draw(st.sampled_from(["", "", "b", "c"])), owner=draw(st.sampled_from(["", "", "", "another"])),
        alone=draw(st.sampled_from([False] * 5 + [True])),
    )  # fmt: skip


@st.composite
def scenarios(draw: st.DrawFn, strategy: str = "multi_bd") -> Scenario:
    """A server, requests as (step of arrival, request), aborts as (step, request number), and steps of preemptions."""
    setup = draw(setups(strategy=strategy))
    arrivals = draw(st.lists(st.tuples(st.integers(0, 12), asks(setup)), min_size=2, max_size=7))
    aborts = draw(st.lists(st.tuples(st.integers(0, 25), st.integers(0, 6)), max_size=2))
    preemptions = draw(st.lists(st.integers(1, 25), max_size=5))
    return setup, sorted(arrivals, key=lambda a: a[0]), aborts, preemptions

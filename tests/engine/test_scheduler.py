"""Requests and rows of each step of the scheduler, on small engines.

See docs/research/decoding-rules.md#the-multi-block-loop.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.engine.request import ScheduledRequest
from tests.engine.harness import Ask, Run, Setup, run_all
from tests.engine.samples import STRATEGIES, asks, setups
from tests.examples import examples
from tests.oracle.block import Params

SLOW = Params(max_tokens=16, accept_threshold=1.0, ignore_eos=True)  # a token a step


def prompt(n: int, length: int) -> tuple[int, ...]:
    return tuple((n * 5 + i) % 13 for i in range(length))


class Watched(Run):
    """Keeps each step's turns as (request number, prefill rows, decode rows)."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.entries: list[list[tuple[int, int, int]]] = []
        schedule = self.engine.scheduler.schedule

        def watched() -> list[ScheduledRequest]:
            entries = schedule()
            prefills = [
                max(0, min(scheduled.end, scheduled.request.prefill_len) - scheduled.start) for scheduled in entries
            ]
            self.entries.append(
                [(t.request.arrival_index, n, t.end - t.start - n) for t, n in zip(entries, prefills, strict=True)]
            )
            return entries

        self.engine.scheduler.schedule = watched  # type: ignore[method-assign]


def watch(setup: Setup, several: list[Ask]) -> Watched:
    run = Watched(setup)
    for ask in several:
        run.add(ask)
    run.drain()
    run.compare()
    return run


def test_long_prompts_are_chunked_next_to_decoding_requests() -> None:
    run = Watched(Setup(budget=14, max_len=64))
    run.add(Ask(prompt(0, 4), SLOW))
    run.step()
    run.add(Ask(prompt(1, 38), replace(SLOW, max_tokens=4)))
    run.drain()
    run.compare()
    rest = 36  # of its prompt, in whole blocks
    for entries in run.entries[1:]:
        rows = {own: (prefill, decode) for own, prefill, decode in entries}
        if rest:  # what the decoding request leaves, in whole blocks; the first step of its own where that fits as well
            left = 14 - sum(rows.get(0, ()))
            chunk = min(rest, left // 4 * 4)
            rest -= chunk
            assert rows[1] == (chunk, 4 if rest == 0 and left - chunk >= 4 else 0)
    mixed = [entries for entries in run.entries if {own for own, _, _ in entries} == {0, 1}]
    assert len(mixed) >= 5


def test_a_steps_rows_are_all_or_none() -> None:
    run = watch(Setup(budget=12, buffer=2), [Ask(prompt(n, 5), SLOW) for n in range(3)])
    for entries in run.entries:
        assert sum(prefill + decode for _, prefill, decode in entries) <= 12
        assert all(prefill % 4 == 0 and decode % 4 == 0 for _, prefill, decode in entries)


@pytest.mark.parametrize(("count", "budget"), [(5, 8), (7, 16), (3, 8)])
def test_round_robin_when_the_budget_binds(count: int, budget: int) -> None:
    """One block each a step, and room for fewer than there are: nobody is served twice before all were once."""
    several = [Ask(prompt(n, 4), replace(SLOW, max_tokens=4)) for n in range(count)]
    run = watch(Setup(budget=budget, prefix_caching=False), several)
    served = dict.fromkeys(range(count), 0)
    for entries in run.entries[1:]:
        for own, _, decode in entries:
            served[own] += decode > 0
        assert max(served.values()) - min(served.values()) <= 1
    nfe = [received.outputs[-1].nfe for received in run.received.values()]
    assert nfe == [4] * count


@examples(15)
@given(st.data())
def test_nobody_starves(data: st.DataObject) -> None:
    """With pages for all, the steps between two turns of a request are at most those in which all others had one, and
    those that the shares of owners and groups leave to the ones of few."""
    setup = replace(data.draw(setups()), pages=500, max_reqs=8)
    several = data.draw(st.lists(asks(setup), min_size=2, max_size=5))
    run = watch(setup, several)
    live = {own for entries in run.entries for own, _, _ in entries}
    for own in live:
        at = [n for n, entries in enumerate(run.entries) if own in {o for o, _, _ in entries}]
        assert max((b - a for a, b in pairwise(at)), default=0) <= 3 * len(several)


def test_first_come_first_served_for_pages() -> None:
    """A short request does not slip past an older one that waits for pages."""
    setup = Setup(pages=10, max_len=40, prefix_caching=False)
    run = Watched(setup)
    run.add(Ask(prompt(0, 20), SLOW))
    run.step()
    run.add(Ask(prompt(1, 20), SLOW))
    run.add(Ask(prompt(2, 2), replace(SLOW, max_tokens=2)))
    run.step()
    assert [r.arrival_index for r in run.engine.scheduler.running] == [0]
    assert [r.arrival_index for r in run.engine.scheduler.waiting] == [1, 2]
    run.drain()
    run.compare()
    first = [next(n for n, entries in enumerate(run.entries) if own in {o for o, _, _ in entries}) for own in range(3)]
    assert first == sorted(first)


@pytest.mark.parametrize("prefix_caching", [True, False])
@STRATEGIES
def test_pinned_answers_end_after_a_preemption(strategy: str, prefix_caching: bool) -> None:
    """All of their tokens may be in the prefix cache: those of the equal requests that ended before."""
    setup = Setup(strategy=strategy, page=1, pages=43, budget=256, max_len=40, prefix_caching=prefix_caching)
    ask = pinned_ask(strategy, prompt(0, 4), 20)
    run = run_all(setup, [replace(ask, report=report) for report in ("final", "stable", "denoise")])
    run.compare()
    assert (run.engine.scheduler.preemptions > 0) == (strategy != "full")


@pytest.mark.parametrize("prefix_caching", [True, False])
@STRATEGIES
def test_a_pinned_answer_as_long_as_the_pool_is_admitted_again(strategy: str, prefix_caching: bool) -> None:
    """It needs no pages for a further block: there is none."""
    budget = {"d2f": 39, "full": 40}.get(strategy, 24)
    longest = 47 if strategy in ("d2f", "nemotron_diffusion") else 40
    setup = Setup(
        strategy=strategy, block=8, page=1, pages=longest, budget=budget, max_len=40, prefix_caching=prefix_caching
    )
    first = Ask((0,), Params(max_tokens=22, ignore_eos=True, sub_block_size=8, algorithm=algorithm_for(strategy)))
    run = run_all(setup, [first, pinned_ask(strategy, prompt(0, 24), 16)])
    run.compare()
    assert (run.engine.scheduler.preemptions > 0) == (strategy != "full")


def algorithm_for(strategy: str) -> str:
    return "dmax" if strategy == "dmax" else "threshold"


def pinned_ask(strategy: str, prompt: tuple[int, ...], max_tokens: int) -> Ask:
    """A request whose answer has no masks."""
    params = Params(max_tokens=max_tokens, ignore_eos=True, sub_block_size=4, algorithm=algorithm_for(strategy))
    return Ask(prompt, params, pinned=tuple((offset, 5) for offset in range(max_tokens)))


def test_admission_asks_for_what_is_needed_now() -> None:
    """Answers as long as the pool: all start at once, though together they will not fit."""
    setup = Setup(pages=12, max_len=48, prefix_caching=False)
    run = Watched(setup)
    for n in range(4):
        run.add(Ask(prompt(n, 4), replace(SLOW, max_tokens=40)))
    run.step()
    assert len(run.engine.scheduler.running) == 4


def test_the_newest_makes_way_and_the_oldest_never_does() -> None:
    setup = Setup(pages=12, max_len=48, prefix_caching=False)
    run = Watched(setup)
    for n in range(4):
        run.add(Ask(prompt(n, 4), replace(SLOW, max_tokens=40)))
    ended = []
    while run.engine.has_work():
        before = {r.arrival_index for r in run.engine.scheduler.running}
        run.step()
        after = {r.arrival_index for r in run.engine.scheduler.running}
        waiting = {r.arrival_index for r in run.engine.scheduler.waiting}
        preempted = before & waiting
        assert not preempted or min(preempted) > max(after, default=-1)
        ended += [int(id[1:]) for id, received in run.received.items() if received.ended and int(id[1:]) not in ended]
    assert run.engine.scheduler.preemptions >= 3
    assert ended == [0, 1, 2, 3]
    run.compare()
    # the oldest was served at every step until it ended, as if alone
    steps = [n for n, entries in enumerate(run.entries) if 0 in {own for own, _, _ in entries}]
    assert steps[:40] == list(range(40))


def test_what_was_decoded_survives_a_preemption() -> None:
    """Preempted requests pick up where they were: their events go on, nothing is sent twice, nfe does not restart."""
    setup = Setup(pages=12, max_len=48, prefix_caching=False)
    run = watch(setup, [Ask(prompt(n, 4), replace(SLOW, max_tokens=40)) for n in range(3)])
    assert run.engine.scheduler.preemptions > 0
    for received in run.received.values():
        assert [o.nfe for o in received.outputs] == list(range(1, 41))


def test_prefix_hits() -> None:
    setup = Setup(page=8, pages=16)
    ask = Ask(prompt(0, 19), replace(SLOW, max_tokens=9))
    run = run_all(setup, [ask])
    again = run.add(ask)
    longer = run.add(Ask((*ask.prompt, *run.received["r0"].tokens, 1, 2), SLOW))
    salted = run.add(replace(ask, salt="tenant"))
    other = run.add(Ask((7, *ask.prompt[1:]), SLOW))
    aligned = run.add(Ask(ask.prompt[:16], SLOW))
    run.drain()
    run.compare()
    hits = {id: run.received[id].outputs[0].cached_tokens for id in run.received}
    # whole pages of 8 below the last whole block of the prompt; the answer's committed blocks are hits as well
    assert hits == {"r0": 0, again: 16, longer: 24, salted: 0, other: 0, aligned: 16}
    assert run.engine.stats().prefix_hit_tokens == sum(hits.values())


@pytest.mark.parametrize("page", [1, 4, 8])
def test_a_prompts_mask_ids_are_no_hit_for_masks_to_fill(page: int) -> None:
    """The block that holds the end of a prompt looks like another prompt that goes on in mask ids: it is not final."""
    setup = Setup(page=page, pages=256 // page)
    stem = prompt(0, 22)  # ends in a block, and in a page of 8 that a whole block begins
    run = run_all(setup, [Ask((*stem, *[setup.mask] * 2), replace(SLOW, max_tokens=4))])
    id = run.add(Ask(stem, SLOW))
    run.drain()
    run.compare()
    assert run.received[id].outputs[0].cached_tokens == (16 if page == 8 else 20)


def test_no_hits_when_switched_off() -> None:
    ask = Ask(prompt(0, 19), SLOW)
    run = run_all(Setup(prefix_caching=False), [ask])
    run.add(ask)
    run.drain()
    assert run.received["r1"].outputs[0].cached_tokens == 0
    assert run.engine.stats().pages_cached == 0


def test_cached_pages_are_reclaimed_least_recently_used_first() -> None:
    """Room for three prompts of three whole blocks: the fourth, of four, takes the tail of the one used longest ago."""
    setup = Setup(pages=12, max_len=16)
    short = replace(SLOW, max_tokens=1)
    run = run_all(setup, [Ask(prompt(n, 13), short) for n in range(3)])
    run.add(Ask(prompt(0, 13), short))
    run.drain()
    run.add(Ask(prompt(3, 13), short))
    run.drain()
    old = [run.add(Ask(prompt(n, 13), short)) for n in (0, 1)]
    run.drain()
    run.compare()
    assert [run.received[id].outputs[0].cached_tokens for id in ("r3", *old)] == [12, 12, 8]


def test_a_block_costs_its_steps_and_no_commit() -> None:
    """Fused commit, also with S=1; the final block is committed alone, and only if it is worth caching."""
    p = replace(SLOW, max_tokens=12)
    for setup, length, commits in (
        (Setup(), 4, 1),  # the answer ends with its block
        (Setup(), 5, 0),  # it does not
        (Setup(prefix_caching=False), 4, 0),
    ):
        run = run_all(setup, [Ask(prompt(0, length), p)])
        stats = run.engine.stats()
        nfe = run.received["r0"].outputs[-1].nfe
        assert 12 <= nfe <= (12 if length == 4 else 15)  # masks past the end may be taken first
        assert stats.forwards_denoise == nfe
        assert stats.forwards_commit == commits


def test_the_reply_does_not_wait_for_the_commit() -> None:
    run = Run(Setup())
    run.add(Ask(prompt(0, 4), replace(SLOW, max_tokens=4)))
    while not run.received["r0"].ended:
        run.step()
    assert run.engine.has_work()
    run.abort("r0")  # too late to matter
    run.drain()
    assert run.engine.stats().forwards_commit == 1


@pytest.mark.parametrize("owners", [("", "", "", "", ""), ("a", "b", "b", "b", "c")])
def test_forwards_of_one_request_alternate_like_others(owners: tuple[str, ...]) -> None:
    """Two requests that want no company and three that take each other's: all get on, none in another's forward."""
    several = [
        Ask(prompt(n, 4 + 3 * n), SLOW, owner=owner, alone=n in (1, 3), salt=str(n)) for n, owner in enumerate(owners)
    ]
    run = watch(Setup(max_len=64), several)
    served = [[own for own, _, _ in entries] for entries in run.entries if entries]
    assert all(entries in ([1], [3]) for entries in served if {1, 3} & set(entries))
    while_all_run = served[: min(max(i for i, entries in enumerate(served) if own in entries) for own in range(5))]
    assert sum(len(entries) == 3 for entries in while_all_run) >= 5
    for own in range(5):
        waits = [i for i, entries in enumerate(while_all_run) if own in entries]
        assert max(later - earlier for earlier, later in pairwise(waits)) <= 4


def test_a_request_with_forwards_of_its_own_does_not_wait_for_later_ones() -> None:
    """Somebody new comes with every step, and new ones go first: every second step is the older one's all the same."""
    run = Watched(Setup(pages=256, max_len=32))
    run.add(Ask(prompt(0, 5), replace(SLOW, max_tokens=20), alone=True))
    for n in range(1, 40):
        run.add(Ask(prompt(n, 4), replace(SLOW, max_tokens=3), salt=str(n)))
        run.step()
    mine = [n for n, entries in enumerate(run.entries) if [own for own, _, _ in entries] == [0]]
    assert len(mine) >= 18
    assert max(later - earlier for earlier, later in pairwise(mine)) == 2
    run.drain()
    run.compare()

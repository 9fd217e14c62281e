"""Tests of the requests and rows that the scheduler selects for each step, on small engines."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.scheduling.request import ScheduledRequest
from tests.engine.harness import Ask, Run, Setup, run_all
from tests.engine.samples import STRATEGIES, asks, setups
from tests.examples import examples
from tests.oracle.block import Params

SLOW = Params(max_tokens=16, accept_threshold=1.0, ignore_eos=True)  # one token per step


def prompt(n: int, length: int) -> tuple[int, ...]:
    return tuple((n * 5 + i) % 13 for i in range(length))


class Watched(Run):
    """Records the scheduled requests of each step as (request number, prefill rows, decode rows)."""

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
    return Watched(setup).finish(*several)


def test_long_prompts_are_chunked_next_to_decoding_requests() -> None:
    run = Watched(Setup(budget=14, max_len=64))
    run.add(Ask(prompt(0, 4), SLOW))
    run.step()
    run.finish(Ask(prompt(1, 38), replace(SLOW, max_tokens=4)))
    rest = 36  # of its prompt, in complete blocks
    for entries in run.entries[1:]:
        rows = {own: (prefill, decode) for own, prefill, decode in entries}
        # Its chunk is what the decoding request leaves, in complete blocks. Its first step follows if it fits too.
        if rest:
            left = 14 - sum(rows.get(0, ()))
            chunk = min(rest, left // 4 * 4)
            rest -= chunk
            assert rows[1] == (chunk, 4 if rest == 0 and left - chunk >= 4 else 0)
    mixed = [entries for entries in run.entries if {own for own, _, _ in entries} == {0, 1}]
    assert len(mixed) >= 5


@pytest.mark.parametrize(("count", "budget"), [(5, 8), (7, 16), (3, 8)])
def test_round_robin_when_the_budget_binds(count: int, budget: int) -> None:
    """The budget suffices for fewer blocks than there are requests."""
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
def test_no_request_starves(data: st.DataObject) -> None:
    """With enough pages, the pause between two steps of a request is at most 3 steps per request.

    The bound allows for a step of every other request, and for requests of small tenants and groups, which come first.
    """
    setup = replace(data.draw(setups()), pages=500, max_reqs=8)
    several = data.draw(st.lists(asks(setup), min_size=2, max_size=5))
    run = watch(setup, several)
    live = {own for entries in run.entries for own, _, _ in entries}
    for own in live:
        at = [n for n, entries in enumerate(run.entries) if own in {o for o, _, _ in entries}]
        assert max((b - a for a, b in pairwise(at)), default=0) <= 3 * len(several)


def test_first_come_first_served_for_pages() -> None:
    setup = Setup(pages=10, max_len=40, prefix_caching=False)
    run = Watched(setup)
    run.add(Ask(prompt(0, 20), SLOW))
    run.step()
    run.add(Ask(prompt(1, 20), SLOW))
    run.add(Ask(prompt(2, 2), replace(SLOW, max_tokens=2)))
    run.step()
    assert [r.arrival_index for r in run.engine.scheduler.running] == [0]
    assert [r.arrival_index for r in run.engine.scheduler.waiting] == [1, 2]
    run.finish()
    first = [next(n for n, entries in enumerate(run.entries) if own in {o for o, _, _ in entries}) for own in range(3)]
    assert first == sorted(first)


@pytest.mark.parametrize("prefix_caching", [True, False])
@STRATEGIES
def test_pinned_answers_end_after_a_preemption(strategy: str, prefix_caching: bool) -> None:
    """All of their tokens may be in the prefix cache, from equal requests that ended before."""
    setup = Setup(strategy=strategy, page=1, pages=43, budget=256, max_len=40, prefix_caching=prefix_caching)
    ask = pinned_ask(strategy, prompt(0, 4), 20)
    run = run_all(setup, [replace(ask, report=report) for report in ("final", "stable", "denoise")])
    assert (run.engine.scheduler.preemptions > 0) == (strategy != "full")


@pytest.mark.parametrize("prefix_caching", [True, False])
@STRATEGIES
def test_a_pinned_answer_as_long_as_the_pool_is_admitted_again(strategy: str, prefix_caching: bool) -> None:
    """It needs no pages for another block, because there is none."""
    budget = {"d2f": 39, "full": 40}.get(strategy, 24)
    longest = 47 if strategy in ("d2f", "nemotron_diffusion") else 40
    setup = Setup(
        strategy=strategy, block=8, page=1, pages=longest, budget=budget, max_len=40, prefix_caching=prefix_caching
    )
    first = Ask((0,), Params(max_tokens=22, ignore_eos=True, sub_block_size=8, algorithm=algorithm_for(strategy)))
    run = run_all(setup, [first, pinned_ask(strategy, prompt(0, 24), 16)])
    assert (run.engine.scheduler.preemptions > 0) == (strategy != "full")


def algorithm_for(strategy: str) -> str:
    return "dmax" if strategy == "dmax" else "threshold"


def pinned_ask(strategy: str, prompt: tuple[int, ...], max_tokens: int) -> Ask:
    """A request whose answer has no masks."""
    params = Params(max_tokens=max_tokens, ignore_eos=True, sub_block_size=4, algorithm=algorithm_for(strategy))
    return Ask(prompt, params, pinned=tuple((offset, 5) for offset in range(max_tokens)))


def test_admission_requires_only_the_pages_of_the_first_step() -> None:
    """Each answer fills most of the pool. All requests start at once, although their answers do not fit together."""
    setup = Setup(pages=12, max_len=48, prefix_caching=False)
    run = Watched(setup)
    for n in range(4):
        run.add(Ask(prompt(n, 4), replace(SLOW, max_tokens=40)))
    run.step()
    assert len(run.engine.scheduler.running) == 4


def test_the_newest_request_is_preempted_and_the_oldest_never_is() -> None:
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


def test_prefix_hits() -> None:
    setup = Setup(page=8, pages=16)
    ask = Ask(prompt(0, 19), replace(SLOW, max_tokens=9))
    run = run_all(setup, [ask])
    again = run.add(ask)
    longer = run.add(Ask((*ask.prompt, *run.received["r0"].tokens, 1, 2), SLOW))
    salted = run.add(replace(ask, salt="tenant"))
    other = run.add(Ask((7, *ask.prompt[1:]), SLOW))
    aligned = run.add(Ask(ask.prompt[:16], SLOW))
    run.finish()
    hits = {id: run.received[id].outputs[0].cached_tokens for id in run.received}
    # complete pages of 8 within the complete blocks of the prompt; committed blocks of an answer are hits too
    assert hits == {"r0": 0, again: 16, longer: 24, salted: 0, other: 0, aligned: 16}
    assert run.engine.stats().prefix_hit_tokens == sum(hits.values())


@pytest.mark.parametrize("page", [1, 4, 8])
def test_mask_ids_of_a_cached_prompt_are_no_hit_for_masks_of_an_answer(page: int) -> None:
    """The last block of a prompt has the ids of another prompt that continues with mask ids, but it is not final."""
    setup = Setup(page=page, pages=256 // page)
    stem = prompt(0, 22)  # ends within a block, and within a page of 8 whose first block is complete
    run = run_all(setup, [Ask((*stem, *[setup.mask] * 2), replace(SLOW, max_tokens=4))])
    id = run.add(Ask(stem, SLOW))
    run.finish()
    assert run.received[id].outputs[0].cached_tokens == (16 if page == 8 else 20)


def test_no_hits_when_switched_off() -> None:
    ask = Ask(prompt(0, 19), SLOW)
    run = run_all(Setup(prefix_caching=False), [ask])
    run.add(ask)
    run.drain()
    assert run.received["r1"].outputs[0].cached_tokens == 0
    assert run.engine.stats().pages_cached == 0


def test_cached_pages_are_reclaimed_least_recently_used_first() -> None:
    """Three prompts have three cached blocks each, and three pages are free."""
    setup = Setup(pages=12, max_len=16)
    short = replace(SLOW, max_tokens=1)
    run = run_all(setup, [Ask(prompt(n, 13), short) for n in range(3)])
    run.add(Ask(prompt(0, 13), short))
    run.drain()
    run.add(Ask(prompt(3, 13), short))
    run.drain()
    old = [run.add(Ask(prompt(n, 13), short)) for n in (0, 1)]
    run.finish()
    assert [run.received[id].outputs[0].cached_tokens for id in ("r3", *old)] == [12, 12, 8]


def test_a_block_costs_its_steps_and_no_commit() -> None:
    """Commits are fused with steps, also with S=1. The last block is committed separately, and only for the cache."""
    p = replace(SLOW, max_tokens=12)
    for setup, length, commits in (
        (Setup(), 4, 1),  # the answer ends with its block
        (Setup(), 5, 0),  # it does not
        (Setup(prefix_caching=False), 4, 0),
    ):
        run = run_all(setup, [Ask(prompt(0, length), p)])
        stats = run.engine.stats()
        nfe = run.received["r0"].outputs[-1].nfe
        assert 12 <= nfe <= (12 if length == 4 else 15)  # masks past the end may be unmasked first
        assert stats.forwards_denoise == nfe
        assert stats.forwards_commit == commits


def test_the_reply_does_not_wait_for_the_commit() -> None:
    run = Run(Setup())
    run.add(Ask(prompt(0, 4), replace(SLOW, max_tokens=4)))
    while not run.received["r0"].ended:
        run.step()
    assert run.engine.has_work()
    run.abort("r0")  # has no effect after the end
    run.drain()
    assert run.engine.stats().forwards_commit == 1


@pytest.mark.parametrize("owners", [("", "", "", "", ""), ("a", "b", "b", "b", "c")])
def test_requests_with_exclusive_batches_alternate_with_others(owners: tuple[str, ...]) -> None:
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


def test_a_request_with_exclusive_batches_does_not_wait_for_later_ones() -> None:
    """A new request arrives in every step and is scheduled first. Still the older one has every second step."""
    run = Watched(Setup(pages=256, max_len=32))
    run.add(Ask(prompt(0, 5), replace(SLOW, max_tokens=20), alone=True))
    for n in range(1, 40):
        run.add(Ask(prompt(n, 4), replace(SLOW, max_tokens=3), salt=str(n)))
        run.step()
    mine = [n for n, entries in enumerate(run.entries) if [own for own, _, _ in entries] == [0]]
    assert len(mine) >= 18
    assert max(later - earlier for earlier, later in pairwise(mine)) == 2
    run.finish()

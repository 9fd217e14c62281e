"""Tests of fairness between tenants and groups (request_queue.py): admission, slots, pages and step time."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.scheduling.request import Request, Status
from runtime.scheduling.request_queue import FairQueue, round_robin
from runtime.scheduling.scheduler import StepTimeEstimator
from tests.engine.harness import Ask, Run, Setup, check_idle, make_engine, run_schedule, spec_of
from tests.engine.samples import asks, setups
from tests.examples import examples
from tests.oracle.block import Params
from tests.scheduling.test_scheduler import SLOW, Watched, prompt

ANSWER = replace(SLOW, max_tokens=8)


def crowd(run: Run, groups: int = 8, size: int = 16, owner: str = "", params: Params = SLOW) -> list[str]:
    """Adds the requests of an attack: `groups` HTTP requests with `size` completions each. Returns their ids."""
    return [
        run.add(Ask(prompt(group, 5), params, group=f"crowd-{group}", owner=owner))
        for group in range(groups)
        for _ in range(size)
    ]


def steps_until(run: Run, id: str, limit: int = 2000) -> int:
    """Runs the engine until the request has ended. Returns the number of steps."""
    for steps in range(limit):
        if run.received[id].ended:
            return steps
        run.step()
    raise AssertionError(f"{id} has not ended after {limit} steps")


CROWDS: dict[str, tuple[Setup, dict[str, Any], int, Ask]] = {  # a server, a crowd, steps before a request, and that
    "eight HTTP requests of 4 completions use every slot": (
        Setup(pages=256, shared_rows=8, max_reqs=16), {"size": 4}, 5, Ask(prompt(9, 6), ANSWER, group="single"),
    ),
    "a crowd uses all pages": (  # its newest requests are preempted; the growth of others does not preempt it again
        Setup(pages=16, max_len=48, prefix_caching=False),
        {"groups": 1, "size": 16, "params": replace(SLOW, max_tokens=40)}, 8,
        Ask(prompt(9, 16), ANSWER, group="single"),
    ),
    "a key has many requests of one completion": (  # only the tenant shows that they are one crowd
        Setup(pages=256, shared_rows=8), {"groups": 20, "size": 1, "owner": "greedy"}, 5,
        Ask(prompt(9, 6), ANSWER, owner="polite", group="single"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CROWDS)
def test_a_single_request_is_served_about_as_soon_as_alone(case: str) -> None:
    setup, members, before, ask = CROWDS[case]
    alone = Run(Setup())
    usual = steps_until(alone, alone.add(ask))
    run = Run(setup)
    crowd(run, **members)
    for _ in range(before):
        run.step()
    assert len(run.engine.scheduler.running) == setup.max_reqs or run.engine.cache.num_available < 6
    assert steps_until(run, run.add(ask)) <= usual + 2  # its prefill and its first step may be two forwards
    assert sum(received.ended for received in run.received.values()) == 1
    run.finish()


def test_if_all_groups_have_one_slot_a_group_without_gets_the_next() -> None:
    run = Run(Setup(pages=256, max_reqs=8))
    crowd(run, size=3)
    for _ in range(5):
        run.step()
    seen = {r.spec.id for r in run.engine.scheduler.running}
    id = run.add(Ask(prompt(9, 6), ANSWER, group="single"))
    while not (admitted := {r.spec.id for r in run.engine.scheduler.running} - seen):
        run.step()
    assert id in admitted
    run.finish()


def test_single_requests_of_one_owner_are_first_come_first_served() -> None:
    run = Watched(Setup(max_reqs=2))
    for n in range(9):
        run.add(Ask(prompt(n, 4), ANSWER, group=str(n)))
    run.drain()
    firsts = [next(n for n, entries in enumerate(run.entries) if own in {o for o, _, _ in entries}) for own in range(9)]
    assert firsts == sorted(firsts)
    assert run.engine.scheduler.preemptions == 0


def test_a_crowd_alone_is_neither_held_back_nor_preempted() -> None:
    run = Watched(Setup(pages=256, shared_rows=4))
    crowd(run, groups=1, size=24, params=ANSWER)
    run.drain()
    assert all(len(entries) == 8 for entries in run.entries[1:16])
    assert run.engine.scheduler.preemptions == 0


def test_requests_with_one_step_each_are_not_held_back() -> None:
    run = Watched(Setup(pages=256, shared_rows=4))
    for n in range(8):
        run.add(Ask(prompt(n, 4), ANSWER, group=str(n)))
    run.step()
    run.step()
    assert len(run.entries[1]) == 8
    run.finish()


def test_beyond_first_entries_a_shared_step_has_limited_rows() -> None:
    """Two crowds and a single request have one entry each per step, and further entries only within `shared_rows`."""
    run = Watched(Setup(pages=256, shared_rows=16))
    crowd(run, groups=2, size=3)
    run.add(Ask(prompt(9, 4), SLOW, group="single"))
    for _ in range(14):
        run.step()
    for entries in run.entries[2:]:
        assert len(entries) == 3 or sum(prefill + decode for _, prefill, decode in entries) <= 16
        assert {own if own == 6 else own // 3 for own, _, _ in entries} == {0, 1, 6}
    served = Counter(own for entries in run.entries for own, _, _ in entries)
    assert max(served[n] for n in range(6)) - min(served[n] for n in range(6)) <= 3
    run.finish()


@examples(8)
@given(st.integers(2, 6), st.integers(1, 4), st.integers(2, 4), st.booleans())
def test_no_request_waits_forever_behind_new_ones(slots: int, groups: int, size: int, tight: bool) -> None:
    """Single requests arrive faster than they can be served.

    For request n of a group, from 0, at most (n + 1) * (number of waiting requests + 2 * slots) others are admitted for
    the first time before it is.
    """
    line = groups * size + 8  # number of waiting requests
    engine = make_engine(Setup(max_reqs=slots, pages=16 if tight else 256, max_len=48, shared_rows=8))
    waiting = engine.scheduler.waiting
    crowds = [f"{group}-{n}" for group in range(groups) for n in range(size)]
    for id in crowds:
        group = id.split("-")[0]
        engine.add(spec_of(id, Ask(prompt(int(group), 5), ANSWER, group=group)))
    admitted: dict[str, int] = {}
    ended: set[str] = set()
    came = 0
    for _ in range(2000):
        while len(waiting) < line:
            engine.add(spec_of(f"single-{came}", Ask(prompt(came, 4), ANSWER, group=f"single-{came}")))
            came += 1
        ended |= {output.id for output in engine.step() if output.finish_reason}
        for request in engine.scheduler.running:
            admitted.setdefault(request.spec.id, len(admitted))
        if ended.issuperset(crowds):
            break
    assert ended.issuperset(crowds)
    assert all(admitted[id] <= (int(id.split("-")[1]) + 1) * (line + 2 * slots) for id in crowds)
    for n in range(came):
        engine.abort(f"single-{n}")
    while engine.has_work():
        engine.step()
    check_idle(engine)


@examples(12)
@given(st.data())
def test_fairness_changes_no_answer(data: st.DataObject) -> None:
    setup = replace(data.draw(setups()), max_reqs=data.draw(st.sampled_from([1, 2, 3])))
    arrivals = []
    for group in range(data.draw(st.integers(2, 4))):
        ask = replace(data.draw(asks(setup)), group=f"g{group}", owner=data.draw(st.sampled_from(["", "a", "b"])))
        at = data.draw(st.integers(0, 15))
        for choice in range(data.draw(st.integers(1, 4))):
            seed = (ask.params.seed + choice) % 2**64
            arrivals.append((at, replace(ask, params=replace(ask.params, seed=seed))))
    aborts = data.draw(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12)), max_size=4))
    run_schedule(Run(setup), arrivals, aborts)


def request(seq: int, owner: str, group: str) -> Request:
    spec = spec_of(str(seq), Ask((1, 2), ANSWER, owner=owner, group=group))
    return Request(spec, size=8, num_final_tokens=0, mask_id=13, arrival_index=seq)


def test_order_of_admission() -> None:
    queue = FairQueue()
    groups = [("a", "1"), ("a", "1"), ("a", "1"), ("a", "2"), ("b", "3"), ("b", "3")]
    waiting = [request(seq, *group) for seq, group in enumerate(groups)]
    for one in waiting:
        queue.add(one)
    order = []
    while queue:
        order.append(queue.first())
        queue.admit(order[-1])
    # tenants alternate, and within a tenant its groups; when b has no more requests, a gets all slots
    assert [one.arrival_index for one in order] == [0, 4, 3, 5, 1, 2]
    queue.requeue(waiting[2])
    last = request(9, "a", "2")
    queue.add(last)
    assert queue.first() is last  # its group has fewer running requests
    queue.admit(last)
    assert queue.first() is waiting[2]
    queue.remove(waiting[2])
    for one in (*waiting[:2], *waiting[3:], last):
        queue.end(one)
    assert not queue
    assert queue.num_competing == 0
    assert not queue._groups


def test_a_preempted_request_is_first_among_equal_groups() -> None:
    queue = FairQueue()
    first, second, third = (request(seq, "", str(seq)) for seq in range(3))
    for one in (first, second, third):
        queue.add(one)
    queue.admit(first)
    queue.admit(second)
    queue.requeue(second)
    assert queue.first() is second


def test_a_group_without_running_requests_may_preempt_one_with_several() -> None:
    queue = FairQueue()
    runs = [request(n, "a", "1") for n in range(2)]
    for one in runs:
        queue.add(one)
        queue.admit(one)
    other, same, own = request(2, "b", "1"), request(3, "a", "2"), request(4, "a", "1")
    for one in (other, same, own):
        queue.add(one)
    assert queue.may_preempt(other, runs[1])
    assert queue.may_preempt(same, runs[1])
    assert not queue.may_preempt(own, runs[1])
    queue.end(runs[0])
    assert not queue.may_preempt(other, runs[1])
    assert not queue.may_preempt(same, runs[1])


def test_round_robin() -> None:
    def dealt(*groups: tuple[str, str]) -> list[list[int]]:
        requests = [request(seq, *group) for seq, group in enumerate(groups)]
        for one in requests:
            one.status = Status.RUNNING
        return [[one.arrival_index for one in round] for round in round_robin(requests)]

    assert dealt(("", "x"), ("", "x"), ("", "y"), ("", "x")) == [[0, 2], [1], [3]]
    assert dealt(("a", "x"), ("a", "x"), ("a", "y"), ("b", "x")) == [[0, 3], [2], [1]]


def test_max_rows_follow_the_times_of_earlier_steps() -> None:
    step_time = StepTimeEstimator(64, 0.1)
    assert step_time.max_rows(8192) == 8192
    for _ in range(20):
        step_time.update(1000, 1.0)
    assert 95 <= step_time.max_rows(8192) <= 105
    for _ in range(20):
        step_time.update(4096, 0.02)  # rows cost almost no time, so only the budget limits them
    assert step_time.max_rows(8192) == 8192


def test_steps_may_take_twice_the_time_of_a_slow_smallest_step() -> None:
    """A step takes 0.3 s to read the weights, and 1 ms per row. So 300 more rows double its time."""
    step_time = StepTimeEstimator(64, 0.1)
    rows = 32
    for _ in range(60):
        step_time.update(rows, 0.3 + rows / 1000)
        rows = step_time.max_rows(8192)
    assert 300 <= rows <= 400

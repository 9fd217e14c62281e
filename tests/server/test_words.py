"""What frontend processes and their head tell each other: messages, the board, reports."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

from prometheus_client.core import Metric

from runtime.errors import RequestError
from runtime.request.engine_messages import EngineOutput
from runtime.server.engine_client.ipc_protocol import Outputs, encode
from runtime.server.frontends import words
from runtime.server.frontends.board import Board, Owned
from runtime.server.frontends.channel import Channel
from runtime.server.frontends.reports import Reports, snapshot
from runtime.server.frontends.words import Failed, Refusal
from runtime.server.metrics import RequestMetrics


def test_messages_come_whole_however_they_are_cut() -> None:
    draw = random.Random(3)
    sent = [
        Outputs([EngineOutput(id=str(n), nfe=n, new_tokens=list(range(draw.choice([0, 3, 4000]))))]) for n in range(40)
    ]
    sent.append(Failed(["a", "b"], Refusal.of(RequestError("no", param="n", status=429, code="queue_full"))))
    data = b"".join(len(one).to_bytes(4, "big") + one for one in map(encode, sent))
    heard: list[words.FromHead] = []
    channel = Channel(words.from_head, heard.append, lambda: None)
    while data:
        size = draw.choice([1, 3, 4, 5, 1000, 60000])
        channel.data_received(data[:size])
        data = data[size:]
    assert heard == sent
    error = heard[-1].refusal.error()  # type: ignore[union-attr]
    assert (error.message, error.param, error.status, error.code) == ("no", "n", 429, "queue_full")


def test_the_board_shows_what_was_asked_for_until_it_is_over(tmp_path: Path) -> None:
    head, first, second = (Board(tmp_path / "board", 2) for _ in range(3))
    owned = Owned(head)
    first.ask(0, "a", 2)
    second.ask(1, "b", 1)
    second.ask(1, "", 4)
    for board in (head, first, second):  # before the head has heard of any
        assert (board.live, board.held("a"), board.held("b"), board.held("c")) == (7, 2, 1, 0)
    head.see(0, "a", 2)
    head.see(1, "b", 1)
    owned["a"] += 2
    owned["b"] += 1
    assert (second.live, second.held("a")) == (7, 2)  # which changes nothing
    owned["a"] -= 1
    owned["b"] -= 1
    del owned["b"]
    assert (first.live, first.held("a"), first.held("b")) == (5, 1, 0)
    head.end("a", 1)
    assert (first.live, first.held("a")) == (4, 0)


def test_keys_are_kept_apart_though_they_share_a_place(tmp_path: Path) -> None:
    draw, board = random.Random(11), Board(tmp_path / "board", 1)
    keys = [f"{draw.getrandbits(64):016x}" for _ in range(300)]
    for key in keys:
        board.ask(0, key, 1)
    counts = Counter(board.held(key) for key in keys)
    assert min(counts) == 1  # never too few
    assert counts[1] >= 290  # with one place each it would be some 280


def test_what_a_process_asked_for_without_being_heard_is_over_with_it(tmp_path: Path) -> None:
    head, draw, alive = Board(tmp_path / "board", 2), random.Random(5), Counter[str]()
    for _ in range(4):  # processes in one place, one after the other
        process = Board(tmp_path / "board", 2)
        for _ in range(50):
            owner, count = draw.choice(["", "a", "b"]), draw.randrange(1, 4)
            process.ask(1, owner, count)
            if draw.random() < 0.7:
                head.see(1, owner, count)
                over = draw.randrange(count + 1)
                head.end(owner, over)
                alive[owner] += count - over
        process.close(1)
        assert head.closed(1) == 1
        assert head.live > alive.total()
        head.renew(1)
        assert (head.closed(1), head.live) == (0, alive.total())
        assert all(head.held(owner) == alive[owner] for owner in "ab")


def observing(ends: int, connections: int) -> RequestMetrics:
    made = RequestMetrics()
    made.requests.labels("stop").inc(ends)
    for _ in range(ends):
        made.end_to_end.observe(0.2)
    made.connections.set(connections)
    return made


def test_reports_add_up_and_totals_outlive_their_process() -> None:
    def samples(found: Reports) -> dict[str, float]:
        metrics: list[Metric] = list(found.collect())
        wanted = ("unmask_requests_total", "unmask_request_seconds_count", "unmask_connections")
        return {s.name: s.value for m in metrics for s in m.samples if s.name in wanted}

    reports = Reports()
    assert samples(reports)["unmask_connections"] == 0
    reports.take(0, snapshot(observing(3, 5)))
    reports.take(1, snapshot(observing(4, 2)))
    both = {"unmask_requests_total": 7, "unmask_request_seconds_count": 7, "unmask_connections": 7}
    assert samples(reports) == both
    reports.retire(0)
    assert samples(reports) == both | {"unmask_connections": 2}
    reports.take(0, snapshot(observing(1, 1)))  # the next in its place
    assert samples(reports) == {"unmask_requests_total": 8, "unmask_request_seconds_count": 8, "unmask_connections": 3}

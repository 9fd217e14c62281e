"""What a frontend process knows of the queue, beside what the head knows of it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from runtime.config import ServerConfig
from runtime.errors import RequestError
from runtime.server.frontends.board import Board
from runtime.server.frontends.remote import Head, Remote
from runtime.server.frontends.words import Facts, Known, Submit
from runtime.server.metrics import RequestMetrics
from tests.server.test_fairness import frontend, spec

CONFIG = ServerConfig(max_queue=4, frontend_processes=2)
SLOTS = 4


def remote(board: Board, said: list[Any], index: int = 0) -> Remote:
    """A process over a head that only notes what it is told."""
    head = Head()
    head.channel = cast(Any, SimpleNamespace(say=said.append))
    made = Remote(CONFIG, RequestMetrics(), head, board, index)
    info = cast(Any, SimpleNamespace(max_num_reqs=SLOTS))
    made.hear(Known(1, Facts(info, [0], ("ready", 1, 1), {}, True, True)))
    return made


def fits(made: Any, name: str, owner: str) -> bool:
    try:
        made.submit([spec(name, owner)])
    except RequestError as error:
        return error.code != "queue_full"
    return True


@pytest.mark.parametrize("owners", [["a"], ["a", "b"], ["a", "a", "b"], ["", "a"], [""]])
def test_what_the_head_has_not_seen_yet_counts_as_it_will_there(tmp_path: Path, owners: list[str]) -> None:
    """So a key that asks for much is refused before its answer begins."""

    async def ask() -> None:
        board, sent = Board(tmp_path / "board", 2), list[Any]()
        table, made = frontend([], queue=4, slots=SLOTS), remote(board, sent)
        for number in range(16):
            owner = owners[number % len(owners)]
            assert fits(made, str(number), owner) == fits(table, str(number), owner)
        assert 4 <= table.live == made.live
        assert all(made.live_of_key(owner) == table.live_of_key(owner) for owner in {"a", "b"})
        await asyncio.sleep(0)
        assert [type(message) for message in sent[1:]] == [Submit]

    asyncio.run(ask())


def test_what_one_process_asks_for_is_known_to_another_at_once(tmp_path: Path) -> None:
    async def ask() -> None:
        first, second = (remote(Board(tmp_path / "board", 2), [], index) for index in range(2))
        assert [fits(first, str(n), "") for n in range(5)] == [True] * 5
        assert [fits(second, str(n), "") for n in range(5)] == [True] * 3 + [False] * 2
        assert not fits(first, "more", "")

    asyncio.run(ask())

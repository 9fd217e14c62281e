"""What processes that speak HTTP ask of the head: its table and the board agree, whatever becomes of it."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest

from runtime.request.engine_messages import EngineOutput, RequestSpec
from runtime.server.engine_client.ipc_protocol import Abort, Add
from runtime.server.frontends.crew import Crew
from runtime.server.frontends.reports import Reports
from runtime.server.frontends.words import Submit, ToHead
from tests.server.test_fairness import frontend, spec
from tests.server.test_places import CONFIG


def test_the_board_is_told_of_every_end(tmp_path: Path) -> None:
    """Of what ran, of what was refused, of what its process gave up, and of what a lost process had asked for."""

    async def submit() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            table = frontend([], queue=1, slots=7)
            crew = Crew(CONFIG, table, Reports(), listener, tmp_path / "board", lambda sentence: None)
            table.on_change = lambda: None  # nobody is there to be told
            board, place = crew.board, crew.places[0]

            def say(message: ToHead) -> tuple[int, int]:
                place.heard(place, message)
                return board.live, board.held("a")

            board.ask(0, "a", 5)
            assert say(Submit([Add.of([spec(name, "a")]) for name in "vwxyz"])) == (4, 4)  # the fifth is refused
            assert table.live == 4
            table.on_outputs(0, [EngineOutput(id="v", nfe=1, finish_reason="stop")])
            assert (board.live, board.held("a")) == (3, 3)
            assert say(Abort(["w", "v"])) == (2, 2)
            board.ask(0, "a", 1)  # and is not heard
            board.renew(0)
            assert (board.live, board.held("a")) == (2, 2) == (table.live, table.live_of_key("a"))
            table.on_down(0, "it ended")
            assert (board.live, board.held("a")) == (0, 0)

    asyncio.run(submit())


def test_what_cannot_be_entered_is_one_requests_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def submit() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            table, said = frontend([], queue=9, slots=7), list[Any]()
            crew = Crew(CONFIG, table, Reports(), listener, tmp_path / "board", lambda sentence: None)
            place, put = crew.places[0], table.router.assign
            place.say = said.append  # type: ignore[method-assign]

            def fails(spec: RequestSpec, *others: Any) -> Any:
                if spec.id == "second":
                    raise ValueError("broken")
                return put(spec, *others)

            monkeypatch.setattr(table.router, "assign", fails)
            crew.board.ask(0, "a", 3)
            two, other = [spec("first", "a"), spec("second", "a")], [spec("third", "a")]
            place.heard(place, Submit([Add.of(two), Add.of(other)]))
            (failed,) = said
            assert (failed.ids, failed.refusal.status) == (["first", "second"], 500)
            assert list(table.requests) == ["third"]
            assert (crew.board.live, crew.board.held("a")) == (1, 1) == (table.live, table.live_of_key("a"))

    asyncio.run(submit())

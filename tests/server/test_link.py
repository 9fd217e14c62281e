"""What a backend's end of its sockets says of them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import zmq

from runtime.server import messages
from runtime.server.link import FrontendGone, Link
from runtime.server.messages import Stop
from runtime.server.peers import Invitation
from tests.wait import wait_until


def test_a_command_is_heard_from_when_it_is_here_until_it_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside, outside = os.pipe()
    commands, events = (f"ipc://{tmp_path}/{name}" for name in ("commands", "events"))
    with zmq.Context() as context, context.socket(zmq.ROUTER) as frontend, open(inside, "rb") as stdin:
        frontend.bind(commands)
        monkeypatch.setattr(sys, "stdin", stdin)
        link = Link("backend-0", commands, events, Invitation())
        try:
            link.greet()
            name, _ = frontend.recv_multipart()
            assert not link.heard()
            frontend.send_multipart([name, messages.encode(Stop("enough"))])
            wait_until(link.heard)
            assert link.heard(), "it has not been taken"
            assert list(link.receive(0)) == [Stop("enough")]
            assert not link.heard()
            os.close(outside)
            with pytest.raises(FrontendGone):
                list(link.receive(1))
        finally:
            link.close()

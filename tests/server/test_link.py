"""Tests of the backend's end of its sockets to the frontend."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import zmq

from runtime.server.engine_client import ipc_protocol
from runtime.server.engine_client.ipc_protocol import Fatal, Ping, Stop
from runtime.server.engine_process.channel import EngineChannel, FrontendGone
from tests.server.harness import ROOT
from tests.wait import wait_until


def test_a_command_is_pending_from_its_arrival_until_it_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside, outside = os.pipe()
    commands, events = (f"ipc://{tmp_path}/{name}" for name in ("commands", "events"))
    with zmq.Context() as context, context.socket(zmq.ROUTER) as frontend, open(inside, "rb") as stdin:
        frontend.bind(commands)
        monkeypatch.setattr(sys, "stdin", stdin)
        link = EngineChannel("backend-0", commands, events)
        try:
            link.send_hello()
            name, _ = frontend.recv_multipart()
            assert not link.has_command()
            frontend.send_multipart([name, ipc_protocol.encode(Ping())])
            wait_until(link.has_command)
            assert link.has_command(), "the command is no longer pending although it was not received"
            assert list(link.receive(0)) == [Ping()]
            assert not link.has_command()
            frontend.send_multipart([name, ipc_protocol.encode(Stop("enough"))])
            wait_until(link.has_command)
            with pytest.raises(FrontendGone, match="enough"):
                list(link.receive(0))
            os.close(outside)
            with pytest.raises(FrontendGone):
                list(link.receive(1))
        finally:
            link.close()


REPORTS = """
import sys, threading, time
from runtime.server.engine_process import channel

commands, events, channel.REASON_SECONDS = sys.argv[1], sys.argv[2], float(sys.argv[3])
backend = channel.EngineChannel("backend-0", commands, events)
threading.Thread(target=backend.fail, args=("a rank is gone",)).start()
while True:
    time.sleep(3600)
"""


def run_failing_backend(commands: str, events: str, reason_seconds: float) -> int:
    """Runs a backend whose thread reports a failure while its main thread is blocked, and returns its exit code."""
    command = [sys.executable, "-c", REPORTS, commands, events, str(reason_seconds)]
    return subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode


def test_a_failure_that_a_thread_reports_reaches_the_frontend(tmp_path: Path) -> None:
    commands, events = (f"ipc://{tmp_path}/{name}" for name in ("commands", "events"))
    with zmq.Context() as context, context.socket(zmq.PULL) as frontend:
        frontend.bind(events)
        assert run_failing_backend(commands, events, 3600) == 1
        name, event = frontend.recv_multipart()
    assert (name, ipc_protocol.decode_event(event)) == (b"backend-0", Fatal("a rank is gone"))


def test_a_failing_backend_exits_without_a_frontend(tmp_path: Path) -> None:
    assert run_failing_backend(f"ipc://{tmp_path}/commands", f"ipc://{tmp_path}/events", 0.1) == 1

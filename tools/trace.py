"""Prints the functions that one step of the engine or one request calls, as a guide to the code.

`python -m tools.trace step` runs the demo checkpoint on the CPU and prints the functions of one denoising step of one
request. Models, layers and kernels are left out, with all that they call. `python -m tools.trace request` serves the
demo checkpoint and prints the functions of one streamed chat in the thread of the event loop, from the accepted
connection to the access log. The engine is another process and is left out.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any
from unittest import mock

ROOT = Path(__file__).parents[1]
MODEL_CODE = ("runtime/models/", "runtime/layers/", "runtime/kernels/")
STEPS_BEFORE = 4  # of the block, so that the batch has its layout already
# Functions of heartbeats, statistics and the regular check of connections, which no request causes.
BACKGROUND = ("_send_pings", "on_stats", "serve")
HOST = "127.0.0.1"
BODY = {"messages": [{"role": "user", "content": "Solve: 12 + 30."}], "stream": True, "temperature": 0}


@dataclass
class Trace:
    """Calls of functions in `runtime/` by one thread. A coroutine that continues counts as a call.

    Attributes:
        left_out: beginnings of paths, and names of functions, that are not recorded, with all that they call.
        active: whether calls are recorded.
        calls: file and function of each call, in order.
    """

    left_out: tuple[str, ...]
    active: bool = True
    calls: list[tuple[str, str]] = field(default_factory=list)
    _depth_left_out: int = 0

    def record(self, frame: FrameType, event: str, _: Any) -> None:
        """Records a call; see ``sys.setprofile``."""
        file = frame.f_code.co_filename.removeprefix(f"{ROOT}/")
        if not self.active or event not in ("call", "return") or not file.startswith("runtime/"):
            return
        if file.startswith(self.left_out) or frame.f_code.co_name in self.left_out:
            # a function may return that was called before the trace became active
            self._depth_left_out = max(self._depth_left_out + (1 if event == "call" else -1), 0)
        elif event == "call" and not self._depth_left_out:
            self.calls.append((file, frame.f_code.co_qualname))


def listing(calls: list[tuple[str, str]]) -> list[str]:
    """Returns the calls, one per line, with the file where it changes."""
    lines, before = [], ""
    for file, function in calls:
        lines += [file] if file != before else []
        lines.append(f"    {function}")
        before = file
    return lines


def trace_step() -> list[str]:
    """Returns the trace of a step in the middle of a block."""
    from runtime import LLM
    from runtime.request.engine_messages import RequestSpec

    trace = Trace(MODEL_CODE)
    with LLM(device="cpu", skip_tokenizer=True) as llm:
        engine = llm.engine
        engine.add(
            RequestSpec(id="0", prompt=[5, 6, 7], max_tokens=64, ignore_eos=True, decoding=engine.info.defaults())
        )
        for _ in range(STEPS_BEFORE):
            engine.step()
        sys.setprofile(trace.record)
        try:
            engine.step()
        finally:
            sys.setprofile(None)
    return listing(trace.calls)


def trace_request() -> list[str]:
    """Returns the trace of a chat. Until then it runs a server in this thread, which has to be the main thread."""
    from runtime.config import parse
    from runtime.server import launcher
    from runtime.server.http_protocol.listener import listen

    listener = listen(HOST, 0)
    port = listener.getsockname()[1]
    config = parse(["--device", "cpu", "--host", HOST, "--port", str(port)], {})
    trace = Trace(BACKGROUND, active=False)
    threading.Thread(target=_send_requests, args=(port, trace), daemon=True).start()
    sys.setprofile(trace.record)
    try:
        with mock.patch.object(launcher, "listen", return_value=listener):  # so that no other process takes the port
            launcher.run(config)
    finally:
        sys.setprofile(None)
    end = max(i for i, (_, function) in enumerate(trace.calls) if function.endswith(".data_received"))
    return listing(trace.calls[:end])


def _send_requests(port: int, trace: Trace) -> None:
    """Sends two chats once the server is ready, of which the second is traced, and ends the server."""
    try:
        probe = http.client.HTTPConnection(HOST, port)
        while _get(probe, "/ready") != http.HTTPStatus.OK:
            time.sleep(0.05)
        _chat(port)  # fills caches
        trace.active = True
        _chat(port)
        _get(probe, "/health")  # answered after all work of the chat is done
        trace.active = False
    finally:
        os.kill(os.getpid(), signal.SIGTERM)


def _get(connection: http.client.HTTPConnection, path: str) -> int:
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        response.read()
    except OSError:  # the server does not listen yet
        connection.close()
        return 0
    return response.status


def _chat(port: int) -> None:
    connection = http.client.HTTPConnection(HOST, port)
    headers = {"Content-Type": "application/json", "Connection": "close"}
    connection.request("POST", "/v1/chat/completions", json.dumps(BODY), headers)
    answer = connection.getresponse().read()
    assert answer.endswith(b"data: [DONE]\n\n"), answer


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tools.trace", description="Prints the calls of one step or request."
    )
    parser.add_argument("what", choices=("step", "request"))
    print(*(trace_step() if parser.parse_args().what == "step" else trace_request()), sep="\n")


if __name__ == "__main__":
    main()

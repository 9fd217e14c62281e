"""Traces one streamed chat in the front end, and counts files, functions and switches between files.

`python -m tools.trace_request` serves the demo checkpoint on the CPU and sends a chat over a new connection. It prints
the functions of the event loop's thread in the order of their calls, from the accepted connection to the access log.
The engine is another process and is left out.

Heartbeats and statistics of the engine are left out. Their arrival may still split a step of a request, so the same
chat is traced several times, and the trace with the fewest switches is taken. On a busy machine steps are split more
often, so there are more traces until one is within the limit.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence

from tools.call_trace import Trace, run_tool

MAX_FILES = 32
MAX_SWITCHES = 140
TRACES, MAX_TRACES = 30, 600
# Functions of heartbeats, statistics and the regular check of connections, which no request causes.
LEFT_OUT = frozenset({"_send_pings", "on_stats", "serve"})
HOST = "127.0.0.1"
BODY = {"messages": [{"role": "user", "content": "Solve: 12 + 30."}], "stream": True, "temperature": 0}


def trace_request() -> Trace:
    """Returns the trace of a chat. Until then it runs a server in this thread, which has to be the main thread."""
    from runtime.config import parse
    from runtime.server.launcher import run

    with socket.socket() as free:
        free.bind((HOST, 0))
        port = free.getsockname()[1]
    config = parse(["--device", "cpu", "--host", HOST, "--port", str(port)], {})
    trace, traces = Trace(left_out_functions=LEFT_OUT, active=False), list[Trace]()
    client = threading.Thread(target=_send_requests, args=(port, trace, traces), daemon=True)
    client.start()
    sys.setprofile(trace.record)
    try:
        run(config)
    finally:
        sys.setprofile(None)
    return min(traces, key=lambda one: one.num_switches)


def _send_requests(port: int, trace: Trace, traces: list[Trace]) -> None:
    """Sends the chat several times once the server is ready, and ends the server."""
    try:
        probe = http.client.HTTPConnection(HOST, port)
        while _get(probe, "/ready") != http.HTTPStatus.OK:
            time.sleep(0.05)
        _chat(port)  # fills caches
        while len(traces) < TRACES or (traces[-1].num_switches > MAX_SWITCHES and len(traces) < MAX_TRACES):
            trace.calls, trace.active = [], True
            _chat(port)
            _get(probe, "/health")  # answered after all work of the chat is done
            trace.active = False
            end = max(i for i, (_, function) in enumerate(trace.calls) if function.endswith(".data_received"))
            traces.append(Trace(trace.calls[:end]))
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the trace. Returns the exit code, which is 1 above `MAX_FILES` or `MAX_SWITCHES`."""
    limits = MAX_FILES, MAX_SWITCHES
    return run_tool("tools.trace_request", "traces one streamed chat", trace_request, limits, arguments)


if __name__ == "__main__":
    sys.exit(main())

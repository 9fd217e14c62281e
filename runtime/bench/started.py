"""Finds the server to load: a running one, or one that is started and stopped."""

from __future__ import annotations

import argparse
import http.client
import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from runtime.child_process import module_command

START_SECONDS = 300.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--url", help="a running server; default: start one on a free port")
    parser.add_argument("--model", help="checkpoint of the started server, or name of a running one's model")
    parser.add_argument("--arch", help="named shape of the started server; requires --random-weights")
    parser.add_argument("--random-weights", action="store_true", help="use random weights; required with --arch")
    parser.add_argument("--server-args", default="", metavar="'--FLAG ...'", help="flags of the started server")


def flags_error(args: argparse.Namespace) -> str | None:
    """Returns an error message for flags that do not fit together; None if they do."""
    if args.random_weights != (args.arch is not None):
        return "--arch and --random-weights: give both, or leave both out"
    if args.arch is not None and (args.url or args.model):
        return "--arch cannot be combined with --url or --model; leave --arch, or --url and --model, out"
    return None


@contextmanager
def checkpoint(args: argparse.Namespace) -> Iterator[str | None]:
    """Yields the value of --model for the server, and for an `LLM` of the same model.

    Raises:
        ConfigError: there is no such shape.
    """
    if args.arch is None:
        yield args.model
        return
    from runtime.bench.random_weights import write_files
    from runtime.bench.sizes import check_served_weights

    check_served_weights(args.arch, args.server_args)
    with tempfile.TemporaryDirectory(prefix="unmask-bench-") as directory:
        write_files(Path(directory), args.arch)
        yield directory


@contextmanager
def running(args: argparse.Namespace, model: str | None) -> Iterator[str]:
    """Yields the address of the server to load. Without --url, starts one and stops it at the end.

    Args:
        args: The flags.
        model: as yielded by `checkpoint`.
    """
    if args.url:
        yield args.url
        return
    module = "runtime.bench.random_server" if args.arch else "runtime.server"
    with launched(model, args.server_args, module=module) as (server, port):
        _wait_until_ready(server, port)
        yield f"http://127.0.0.1:{port}"


@contextmanager
def launched(
    model: str | None, server_args: str, *, module: str = "runtime.server", **environment: str
) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Starts a server on a free port of the loopback address, and stops it at the end. It may not be ready yet.

    Args:
        model: Value of ``--model``; None for the demo.
        server_args: Further flags, as one string.
        module: Module to start.
        environment: Variables to set in addition to those of this process.

    Yields:
        The process and its port.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [*module_command(module), "--host", "127.0.0.1", "--port", str(port)]
    command += ["--log-level", "warning", *server_args.split()]
    if model:
        command += ["--model", model]
    server = subprocess.Popen(command, env=os.environ | environment)
    try:
        yield server, port
    finally:
        server.terminate()
        try:
            server.wait(60)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def _wait_until_ready(server: subprocess.Popen[bytes], port: int) -> None:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        if server.poll() is not None:
            raise RuntimeError(f"the server ended while starting, with status {server.returncode}")
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=5)) as connection:
            try:
                connection.request("GET", "/ready")
                if connection.getresponse().status == 200:
                    return
            except (OSError, http.client.HTTPException):
                pass
        time.sleep(0.2)
    raise RuntimeError(f"the server was not ready after {START_SECONDS:.0f} s")

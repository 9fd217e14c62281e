"""Runs the ranks of a further host, which connect to node 0, and restarts them with the replica. Imports no torch."""

from __future__ import annotations

import logging
import signal
import socket
import subprocess
import time
from typing import Any

from runtime.config import ServerConfig
from runtime.distributed.address import without_brackets
from runtime.distributed.rank_launcher import RANK_COMMAND, spawn
from runtime.errors import ConfigError

log = logging.getLogger("unmask.node")

RETRY_SECONDS = 0.5


class Terminated(Exception):
    """SIGTERM was received."""


def run_node(config: ServerConfig, command: tuple[str, ...] = RANK_COMMAND) -> int:
    """Runs the ranks of this node until SIGTERM; returns the exit code.

    Raises:
        ConfigError: Node 0 cannot be reached in time.
    """

    def on_sigterm(number: int, frame: Any) -> None:
        raise Terminated

    signal.signal(signal.SIGTERM, on_sigterm)
    ranks: list[subprocess.Popen[bytes]] = []
    try:
        while True:
            for local, device in enumerate(config.devices_of(0)):
                connection = _connect(config)
                ranks.append(spawn(command, connection, config.node_rank, local, device))
            log.info("Started %d ranks of node %d for node 0 at %s", len(ranks), config.node_rank, config.master_addr)
            while all(rank.poll() is None for rank in ranks):
                time.sleep(0.1)
            log.warning("Replica exited; restarting local ranks")
            _end(ranks)
            time.sleep(RETRY_SECONDS)
    except (Terminated, KeyboardInterrupt):
        return 0
    finally:
        _end(ranks)


def _connect(config: ServerConfig) -> socket.socket:
    seconds = config.engine.distributed_timeout_seconds
    until = time.monotonic() + seconds
    address = (without_brackets(config.master_addr), config.master_port or 0)
    while True:
        try:
            connection = socket.create_connection(address, timeout=max(until - time.monotonic(), 0.1))
        except OSError as error:
            if time.monotonic() > until:
                raise ConfigError(
                    f"--master-addr {address[0]} --master-port {address[1]}: node 0 was not there within "
                    f"--distributed-timeout-seconds, {seconds:g} s: {error.strerror or error}"
                ) from None
            time.sleep(RETRY_SECONDS)
        else:
            connection.settimeout(None)
            return connection


def _end(ranks: list[subprocess.Popen[bytes]]) -> None:
    for rank in ranks:
        if rank.poll() is None:
            rank.kill()
    for rank in ranks:
        rank.wait()
    ranks.clear()

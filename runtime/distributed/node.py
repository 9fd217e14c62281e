"""A host that lends its devices to a replica: its ranks come to the host that serves, and come again when the replica
starts anew. No torch here."""

from __future__ import annotations

import logging
import signal
import socket
import subprocess
import time
from typing import Any

from runtime.config import ServerConfig
from runtime.distributed.address import without_brackets
from runtime.distributed.rank_launcher import FOLLOW, spawn
from runtime.errors import ConfigError

log = logging.getLogger("unmask.node")

AGAIN_SECONDS = 0.5


class Told(Exception):
    """To end."""


def lend(config: ServerConfig, command: tuple[str, ...] = FOLLOW) -> int:
    """Until told to end; the process's exit code. ConfigError when the host that serves is not there in time."""

    def told(number: int, frame: Any) -> None:
        raise Told

    signal.signal(signal.SIGTERM, told)
    ranks: list[subprocess.Popen[bytes]] = []
    try:
        while True:
            for local, device in enumerate(config.devices_of(0)):
                connection = _connect(config)
                ranks.append(spawn(command, connection, config.node_rank, local, device))
            log.info("%d ranks of node %d have come to %s", len(ranks), config.node_rank, config.master_addr)
            while all(rank.poll() is None for rank in ranks):
                time.sleep(0.1)
            log.warning("the replica has ended; its ranks here come again")
            _end(ranks)
            time.sleep(AGAIN_SECONDS)
    except (Told, KeyboardInterrupt):
        return 0
    finally:
        _end(ranks)


def _connect(config: ServerConfig) -> socket.socket:
    seconds = config.engine.distributed_timeout_seconds
    until = time.monotonic() + seconds
    place = (without_brackets(config.master_addr), config.master_port or 0)
    while True:
        try:
            connection = socket.create_connection(place, timeout=max(until - time.monotonic(), 0.1))
        except OSError as error:
            if time.monotonic() > until:
                raise ConfigError(
                    f"--master-addr {place[0]} --master-port {place[1]}: node 0 was not there within "
                    f"--distributed-timeout-seconds, {seconds:g} s: {error.strerror or error}"
                ) from None
            time.sleep(AGAIN_SECONDS)
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

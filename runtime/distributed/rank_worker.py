"""A rank that follows: it loads its share of the model and does each step that the leading rank tells it.

``python -m runtime.distributed.rank_worker`` is started by the leading rank, or by ``node`` on another host.
"""

from __future__ import annotations

import argparse
import logging
import os
import socket
import sys
import threading
from collections.abc import Callable
from typing import Any

import torch

from runtime.config import EngineConfig
from runtime.distributed import process_group as groups
from runtime.distributed.file_check import files_of
from runtime.distributed.rpc import (
    BEAT_SECONDS,
    VERSION,
    AdapterPair,
    AddAdapter,
    Arrays,
    Beat,
    Close,
    DropAdapter,
    Failed,
    Gone,
    Hello,
    Join,
    Load,
    Loaded,
    Look,
    Message,
    PutAdapter,
    Rows,
    Sample,
    Seen,
    Step,
    Whole,
    Wire,
)
from runtime.distributed.serialization import GEOMETRY, block_plan, step_plan
from runtime.engine.engine import Engine
from runtime.engine.setup import LoadModel, load_engine
from runtime.engine.step_plan import DenoiseBlocks, StepPlan
from runtime.errors import ConfigError
from runtime.lora.adapter_weights import Bank
from runtime.lora.distributed_backend import FollowingBank
from runtime.weights import load_model
from runtime.worker.model_runner import ModelRunner

log = logging.getLogger("unmask.rank")


class Follower:
    """`index`: of the GPU here, if it is another than the leading rank says. `load`: see `load_engine`."""

    def __init__(self, wire: Wire, index: int | None, load: LoadModel) -> None:
        self.wire = wire
        self.index = index
        self.load = load
        self.steps = 0

    def serve(self) -> None:
        """Until the leading rank has gone. Raises ConfigError, and whatever a step fails with."""
        message, _ = self.wire.receive()
        if not isinstance(message, Join):
            raise ValueError(f"{type(message).__name__} came before the ranks were told of each other")
        group = self._join(message)
        config: EngineConfig | None = None
        while True:
            message, _ = self.wire.receive()
            if isinstance(message, Look):
                config = message.engine
                self.wire.send(Seen(files_of(config)))
            elif isinstance(message, Load) and config is not None:
                engine = load_engine(config, load=self.load, group=group)
                self.wire.send(Loaded())
                self._follow(engine)
                engine.close()
            elif not isinstance(message, Close):
                raise ValueError(f"{type(message).__name__} came while no engine was loaded")

    def _join(self, told: Join) -> groups.Group:
        device = torch.device(told.device)
        if device.type == "cuda":
            device = device if self.index is None else torch.device("cuda", self.index)
            if not torch.cuda.is_available() or (device.index or 0) >= torch.cuda.device_count():
                raise ConfigError(f"there is no {device} on {socket.gethostname()}; give --device-ids that are")
            torch.cuda.set_device(device)
        connection = self.wire.connection
        own = told.host if connection.family == socket.AF_UNIX else connection.getsockname()[0]
        store = groups.meeting(told.host, told.seconds, told.port)
        return groups.join(told.rank, told.size, store, device, told.seconds, own, near=told.near)

    def _follow(self, engine: Engine) -> None:
        """Until the engine is to be dropped."""
        runner, matrices = engine.runner, engine.lora_manager.backend
        assert isinstance(runner, ModelRunner)
        bank = FollowingBank(matrices) if isinstance(matrices, Bank) else None
        geometry: dict[str, Any] = {}
        while True:
            message, arrays = self.wire.receive()
            match message:
                case Close():
                    return
                case Step(same, adapted):
                    if not same:
                        geometry = {name: arrays[name] for name in GEOMETRY}
                    runner.run(step_plan(arrays, geometry, self._sampled, adapted))
                case Whole(pages, adapted):
                    runner.logits(self._whole(arrays, adapted), pages)
                case Rows() if runner.last_logits is not None:
                    with torch.inference_mode():
                        runner.last_logits.rows(arrays["rows"])
                    continue
                case AdapterPair() | AddAdapter() | DropAdapter() | PutAdapter() if bank is not None:
                    bank.follow(message, arrays)
                    continue
                case _:
                    raise ValueError(f"{type(message).__name__} is no work for a loaded engine")
            self.steps += 1

    def _sampled(self) -> DenoiseBlocks | None:
        message, arrays = self.wire.receive()
        if not isinstance(message, Sample):
            raise ValueError(f"{type(message).__name__} came within a step")
        return block_plan(message, arrays)

    def _whole(self, arrays: Arrays, adapted: int) -> StepPlan:
        return step_plan(arrays, {name: arrays[name] for name in GEOMETRY}, lambda: None, adapted)

    def beat(self) -> None:
        """Until nobody hears it."""
        try:
            while True:
                self.wire.send(Beat(self.steps))
                threading.Event().wait(BEAT_SECONDS)
        except Gone:
            return

    def end_with_the_leader(self) -> None:
        """Whatever this process is waiting for then, it will not come."""
        self.wire.wait_for_the_end()
        os._exit(0)


def run(follower: Follower, node: int, local: int) -> int:
    """Follow; the process's exit code."""
    wire = follower.wire
    try:
        wire.send(Hello(VERSION, os.getpid(), socket.gethostname(), node, local))
        for work in (follower.beat, follower.end_with_the_leader):
            threading.Thread(target=work, daemon=True).start()
        follower.serve()
    except Gone:
        return 0
    except Exception as error:
        user = isinstance(error, ConfigError)
        if not user:
            log.exception("a rank failed")
        return _tell(wire, Failed(sentence(error), user))
    return 0


def _tell(wire: Wire, word: Message) -> int:
    try:
        wire.send(word)
    except Gone:
        return 0
    return 1


def sentence(error: BaseException) -> str:
    """Why it failed, in one line."""
    first = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, ConfigError):
        return first
    if isinstance(error, MemoryError) or type(error).__name__ in ("OutOfMemoryError", "AcceleratorError"):
        return f"ran out of memory, or its device failed ({first})"
    return f"failed: {type(error).__name__}: {first}"


def main(
    argv: list[str] | None = None, prepare: Callable[[], object] = lambda: None, load: LoadModel = load_model
) -> int:
    """The process's exit code. `load`: see `load_engine`."""
    parser = argparse.ArgumentParser(
        prog="runtime.distributed.rank_worker", description="started by a rank, not by hand"
    )
    parser.add_argument("--socket", type=int, required=True)
    parser.add_argument("--node", type=int, default=0)
    parser.add_argument("--local", type=int, default=0)
    parser.add_argument("--device", type=int)
    args = parser.parse_args(argv)
    prepare()
    wire = Wire(socket.socket(fileno=args.socket))
    code = run(Follower(wire, args.device, load), args.node, args.local)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # a group whose other ranks have gone would be waited for


if __name__ == "__main__":
    sys.exit(main())

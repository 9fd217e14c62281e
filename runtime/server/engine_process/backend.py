"""Main module of the backend process, which runs one engine. The frontend starts it (`BACKEND_COMMAND`).

The loop is single-threaded. With running requests, it reads messages between steps without waiting. Otherwise it waits
for a message. Standard input is a pipe from the frontend: end of file means that the frontend has exited.
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import sys
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any, NoReturn

from runtime.child_process import exit_with_parent, module_command
from runtime.distributed.address import loopback, resolve
from runtime.errors import AdapterNotLoadedError, ConfigError, ReplicaLost, is_out_of_memory
from runtime.plugins import load_plugins
from runtime.request.engine_messages import EngineOutput
from runtime.server import logs
from runtime.server.engine_client import ipc_protocol
from runtime.server.engine_process.background_work import POLL_SECONDS, AdapterWorker, ProfileWorker
from runtime.server.engine_process.channel import EngineChannel, FrontendGone

log = logging.getLogger("unmask.backend")

Progress = Callable[[str, int, int], None]
Lost = Callable[[str], None]
EngineFactory = Callable[[ipc_protocol.Configure, Progress, Lost], Any]


class Backend:
    """The loop of the engine: executes commands of the frontend, runs steps and sends outputs.

    Attributes:
        stats_sent: time of the last `Stats`, monotonic seconds.
        stats_due: the stats may have changed since then.
        capturing: CUDA graphs remain to be captured while no request runs.
        overlaps_outputs: the engine sends outputs during the next forward.
    """

    def __init__(self, link: EngineChannel, engine: Any) -> None:
        self.link = link
        self.engine = engine
        self.stats_sent = 0.0
        self.stats_due = True
        self.capturing = True
        self.overlaps_outputs: bool = engine.set_overlap_callback(self.send_outputs)
        self.adapters = AdapterWorker(engine, link.send, self.add)
        self.profile = ProfileWorker(link.name.decode(), link.send)

    def run(self) -> NoReturn:
        """Runs the loop until it raises FrontendGone."""
        while True:
            busy = self.engine.has_work()
            if not busy and self.stats_due:
                self.send_stats()
            idle = POLL_SECONDS if self.adapters.pending or self.profile.pending else ipc_protocol.PING_SECONDS
            for command in self.link.receive(0 if busy or self.capturing else idle):
                self.handle(command)
            if self.adapters.pending:
                self.adapters.poll()
            if self.profile.pending:
                self.profile.poll()
            if self.engine.has_work():
                self.stats_due = True
                if self.profile.recording:
                    self.profile.step(self.engine)
                else:
                    self.engine.execute_step()
                if not self.overlaps_outputs or not self.engine.has_work():
                    self.send_outputs()
                if time.monotonic() - self.stats_sent > ipc_protocol.BUSY_STATS_SECONDS:
                    self.send_stats()
            elif self.capturing:  # one graph per iteration, so that a request waits for at most one capture
                self.capturing = self.engine.capture_next()
                if not self.capturing:
                    self.stats_due = True

    def send_outputs(self) -> None:
        """Sends the outputs of finished steps."""
        outputs = self.engine.take_outputs()
        if outputs:
            self.link.send(ipc_protocol.Outputs(outputs))

    def handle(self, command: ipc_protocol.Command) -> None:
        """Executes a command. Raises TypeError for one that a loaded backend does not accept.

        The `CallResult` of a call is sent when its operation is complete.
        """
        match command:
            case ipc_protocol.Add():
                for spec in command.requests():
                    if not spec.adapter or not self.adapters.defer(spec):
                        self.add(spec)
            case ipc_protocol.Abort(ids):
                last = [output for request_id in ids if (output := self.abort(request_id)) is not None]
                if last:
                    self.link.send(ipc_protocol.Outputs(last))
                self.stats_due = True
            case ipc_protocol.Ping():
                self.stats_due = True
            case ipc_protocol.Call(number, ipc_protocol.ReportStats()):
                self.send_stats()
                self.link.send(ipc_protocol.CallResult(number))
            case ipc_protocol.Call(number, ipc_protocol.LoadAdapter() as load):
                self.adapters.load(number, load)
            case ipc_protocol.Call(number, ipc_protocol.UnloadAdapter(name)):
                self.adapters.unload(number, name)
            case ipc_protocol.Call(number, ipc_protocol.StartProfile(directory)):
                self.profile.start(number, directory)
            case ipc_protocol.Call(number, ipc_protocol.StopProfile(keep)):
                self.profile.stop(number, keep)
            case _:
                raise TypeError(f"{type(command).__name__} is not for a loaded backend")

    def add(self, spec: Any) -> None:
        """Adds a request to the engine. If that fails, it sends the error as the output of the request."""
        try:
            self.engine.add(spec)
        except AdapterNotLoadedError as error:  # the unload arrived first, over another socket
            output = EngineOutput(id=spec.id, nfe=0, finish_reason="error", error=str(error), adapter_unloaded=True)
            self.link.send(ipc_protocol.Outputs([output]))
        except Exception as error:  # an error of one request must not end the others
            log.exception("failed to add request %s; its client gets an error. Report it with this traceback", spec.id)
            failed = EngineOutput(id=spec.id, nfe=0, finish_reason="error", error=f"{type(error).__name__}: {error}")
            self.link.send(ipc_protocol.Outputs([failed]))

    def abort(self, request_id: str) -> EngineOutput | None:
        """Aborts a request, and returns its last output; None if it has finished."""
        if self.adapters.abort(request_id):
            return EngineOutput(id=request_id, nfe=0, finish_reason="abort")
        last: EngineOutput | None = self.engine.abort(request_id)
        return last

    def send_stats(self) -> None:
        """Sends the statistics, and what they count of each answer that is sent at its end."""
        self.link.send(ipc_protocol.Stats(self.engine.stats()))
        if progress := self.engine.progress():
            self.link.send(ipc_protocol.Outputs(progress))
        self.stats_sent = time.monotonic()
        self.stats_due = False


def import_engine() -> None:
    """Imports the engine while the process waits for its configuration, which saves time at startup."""
    import_module("runtime.engine.setup")


def take_devices(configure: ipc_protocol.Configure) -> tuple[int, ...] | None:
    """Makes the first GPU of the replica the current device of this process.

    Returns:
        Indices of the GPUs of the replica; None if it runs on the CPU.

    Raises:
        ConfigError: a GPU does not exist.
    """
    import torch

    from runtime.distributed.gpu import check_devices
    from runtime.executor.executor import on_gpus

    if not on_gpus(configure.engine):
        return None
    check_devices(configure.devices, "--device-ids")
    torch.cuda.set_device(configure.devices[0])
    return configure.devices


def load_engine(configure: ipc_protocol.Configure, progress: Progress, lost: Lost) -> Any:
    """Loads the engine of a replica.

    Args:
        configure: configuration of the replica.
        progress: called with phase, loaded bytes and total bytes.
        lost: `on_lost` of ``runtime.executor.executor.MultiprocExecutor``.

    Raises:
        ConfigError: the configuration, the checkpoint or the devices are wrong.
    """
    config, devices = configure.engine, take_devices(configure)
    if config.tensor_parallel_size == 1:
        from runtime.engine import setup

        return setup.load_engine(config, progress, chat_template=configure.chat_template)
    from runtime.executor.executor import MultiprocExecutor
    from runtime.executor.rank_launcher import WorkerPlacement

    command = (*module_command("runtime.server.engine_process.rank"), configure.log_level, configure.log_format)
    address = loopback()
    if configure.nodes > 1:
        try:
            address = resolve(configure.address, config.distributed_timeout_seconds)
        except OSError as error:
            raise ConfigError(
                f"--master-addr {configure.address}: the name was not resolved within --distributed-timeout-seconds: "
                f"{error.strerror}; check it"
            ) from None
    placement = WorkerPlacement(devices, configure.nodes, address, configure.port, command)
    return MultiprocExecutor(config.tensor_parallel_size, placement, config.distributed_timeout_seconds, lost).load(
        config, progress, chat_template=configure.chat_template
    )


def _sentence(error: BaseException) -> str:
    """Returns the reason of a failed load in one line."""
    first = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, ConfigError | ReplicaLost):
        return first
    if is_out_of_memory(error) or type(error).__name__ == "AcceleratorError":
        flags = "--num-pages, --max-num-reqs, --max-num-batched-tokens or --max-model-len"
        return f"a step and the KV cache do not fit in memory ({first}); set a smaller {flags}, or --quantization"
    return f"the engine could not be loaded: {type(error).__name__}: {first}"


def serve(link: EngineChannel, make_engine: EngineFactory, prepare: Callable[[], object]) -> int:
    """Receives the configuration, loads the engine and runs its loop until `FrontendGone` is raised.

    Returns 1 if the engine could not be loaded.
    """
    link.send_hello()
    prepare()
    configure = link.configuration()
    logs.configure_logging(configure.log_level, configure.log_format, link.name.decode())
    started = time.monotonic()

    def progress(phase: str, done_bytes: int, total_bytes: int) -> None:
        link.send(ipc_protocol.Loading(phase, done_bytes, total_bytes))
        for _ in link.receive(0):  # raises FrontendGone
            pass

    try:
        load_plugins(configure.engine.plugin)
        engine = make_engine(configure, progress, link.fail)
    except FrontendGone:
        raise
    except Exception as error:
        if not isinstance(error, ConfigError) and not is_out_of_memory(error):
            log.exception(
                "failed to load the engine; the process exits. Check --model, or report it with this traceback"
            )
        link.send(ipc_protocol.Fatal(_sentence(error)))
        return 1
    gc.enable()
    gc.freeze()  # these objects are never freed; scanning them would delay all requests by a tenth of a second
    link.send(ipc_protocol.Ready(engine.info, time.monotonic() - started))
    Backend(link, engine).run()


def main(make_engine: EngineFactory = load_engine, prepare: Callable[[], object] = import_engine) -> int:
    """Runs the process and returns its exit code. Tests replace the engine with `make_engine`."""
    parser = argparse.ArgumentParser(
        prog="runtime.server.engine_process.backend", description="started by the frontend, not by hand"
    )
    parser.add_argument("--name", required=True)
    parser.add_argument("--command-addr", required=True)
    parser.add_argument("--event-addr", required=True)
    parser.add_argument("--router-addr")
    args = parser.parse_args()
    exit_with_parent()
    gc.disable()  # until the engine is loaded: modules and weights are never freed, so scanning them wastes time
    link = EngineChannel(args.name, args.command_addr, args.event_addr, args.router_addr)
    try:
        return serve(link, make_engine, prepare)
    except FrontendGone as gone:
        log.info("Engine process exiting: %s", gone)
        return 0
    except ReplicaLost as error:
        log.error("%s", error)
        link.send(ipc_protocol.Fatal(str(error)))
        return 1
    except Exception as error:
        log.exception("the engine loop failed; the process exits and is restarted. Report it with this traceback")
        link.send(ipc_protocol.Fatal(f"{type(error).__name__}: {' '.join(str(error).split())}"))
        return 1
    finally:
        link.close()


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    logging.shutdown()
    os._exit(code)  # a normal exit would wait for a process group whose ranks have exited

"""A rank other than rank 0: loads its shard of the model and runs each step that rank 0 sends.

Rank 0 starts ``python -m runtime.executor.rank_worker``. On another host, ``run_node`` starts it.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import torch

from runtime.config import EngineConfig
from runtime.distributed import process_group as groups
from runtime.distributed.gpu import device_name
from runtime.engine.engine import Engine
from runtime.engine.setup import LoadModel, load_engine
from runtime.errors import ConfigError, is_out_of_memory
from runtime.executor import rpc
from runtime.executor.serialization import decode_blocks, decode_forward
from runtime.lora.adapter_checkpoint import Adapter, LoRAPair, resolve_adapter
from runtime.lora.adapter_weights import LoRAWeights
from runtime.plugins import digest_of, load_plugins
from runtime.weights.checkpoint import Checkpoint, resolve_checkpoint
from runtime.weights.checkpoint_files import file_digests
from runtime.weights.loader import load_model
from runtime.worker.model_runner import ModelRunner


def file_digests_of(config: EngineConfig, checkpoint: Checkpoint) -> dict[str, str]:
    """Returns the digests of all files of an engine: checkpoint, adapters and plugins.

    Safetensors files that are not loaded do not count: a cache may have them from an earlier download.

    Returns:
        File name -> digest. The name of an adapter's file begins with the name of the adapter.

    Raises:
        ConfigError: a file is missing.
    """
    loaded, found = checkpoint.weight_files(), file_digests(checkpoint.path)
    found = {name: digest for name, digest in found.items() if name in loaded or not name.endswith(".safetensors")}
    adapters = dict(config.adapters)
    if config.lora_path is not None:
        adapters["--lora-path"] = config.lora_path
    for name, uri in adapters.items():
        found |= {f"{name}/{file}": digest for file, digest in file_digests(resolve_adapter(uri)).items()}
    return found | {f"--plugin {file}": digest_of(file) for file in config.plugin}


log = logging.getLogger("unmask.rank")


class WorkerLoRABackend:
    """LoRA backend of the other ranks, which applies the messages of `DistributedLoRABackend`."""

    def __init__(self, weights: LoRAWeights) -> None:
        self.weights = weights
        self.pairs: dict[str, LoRAPair] = {}  # pairs of the adapter that is being received

    def apply(self, message: rpc.AdapterPair | rpc.AddAdapter | rpc.DropAdapter | rpc.PutAdapter) -> None:
        match message:
            case rpc.AdapterPair(tensor, lora_a, lora_b):
                slot = self.weights.base.weights.slots[tensor]
                self.pairs[tensor] = LoRAPair(slot, torch.from_numpy(lora_a), torch.from_numpy(lora_b))
            case rpc.AddAdapter(name, digest):
                self.weights.add(name, Adapter(Path(name), self.pairs, digest))
                self.pairs = {}
            case rpc.DropAdapter(name):
                self.weights.drop(name)
            case rpc.PutAdapter(slot, name):
                self.weights.put(slot, name)


class RankWorker:
    """Executes the messages of rank 0.

    Args:
        connection: connection to rank 0.
        device_index: GPU to use instead of that of `Join`; None: that of `Join`.
        load: see `load_engine`.
    """

    def __init__(self, connection: rpc.RpcConnection, device_index: int | None, load: LoadModel) -> None:
        self.connection = connection
        self.device_index = device_index
        self.load = load

    def serve(self) -> None:
        """Executes messages until rank 0 closes the connection.

        Raises:
            ConnectionClosed: rank 0 has closed the connection.
            ConfigError: the configuration, the files or the device are wrong.
            Exception: a step failed.
        """
        message = self.connection.receive()
        if not isinstance(message, rpc.Join):
            raise ValueError(f"{type(message).__name__} was received before Join")
        group = self._join(message)
        config: EngineConfig | None = None
        while True:
            message = self.connection.receive()
            if isinstance(message, rpc.CheckFiles):
                config = message.engine
                load_plugins(config.plugin)
                self.connection.send(rpc.FilesSeen(file_digests_of(config, resolve_checkpoint(config.model))))
            elif isinstance(message, rpc.LoadEngine) and config is not None:
                engine = load_engine(config, load=self.load, group=group)
                self.connection.send(rpc.EngineLoaded())
                with engine.runner.step_context():
                    self._run_engine(engine, group)
                engine.close()
            elif not isinstance(message, rpc.CloseEngine):
                raise ValueError(f"{type(message).__name__} was received while no engine was loaded")

    def _join(self, message: rpc.Join) -> groups.TensorParallelGroup:
        device = torch.device(message.device)
        if device.type == "cuda":
            device = device if self.device_index is None else torch.device("cuda", self.device_index)
            if not torch.cuda.is_available() or (device.index or 0) >= torch.cuda.device_count():
                raise ConfigError(
                    f"--tensor-parallel-size: {device} does not exist on {socket.gethostname()}; lower it, or give "
                    "--device-ids that exist there"
                )
            torch.cuda.set_device(device)
        self.connection.send(rpc.DeviceSelected(device_name(device)))
        connection = self.connection.socket
        own = message.host if connection.family == socket.AF_UNIX else connection.getsockname()[0]
        file, seconds = message.store_file, message.seconds
        if file is None:
            store = groups.make_store(message.host, seconds, message.port)
        else:
            store = groups.open_store_file(file, seconds)
        same_host = file is not None
        return groups.init_process_group(message.rank, message.size, store, device, seconds, own, same_host=same_host)

    def _run_engine(self, engine: Engine, group: groups.TensorParallelGroup) -> None:
        """Runs steps until `CloseEngine`."""
        runner, matrices = engine.runner, engine.lora_manager.backend
        assert isinstance(runner, ModelRunner)
        bank = WorkerLoRABackend(matrices) if isinstance(matrices, LoRAWeights) else None
        while True:
            message = self.connection.receive()
            match message:
                case rpc.CloseEngine():
                    return
                case rpc.Step(data):
                    runner.launch_forward(decode_forward(data))
                case rpc.WriteTables(writes, page_writes):
                    runner.write(writes, page_writes)
                case rpc.Sample(data) if runner.hidden_states is not None:
                    runner.launch_sampling(decode_blocks(data, runner.model_step.sampler.get_algorithm))
                    runner.wait()
                    runner.results()
                case rpc.CheckTables():
                    group.all_gather(runner.states.checksums())
                case rpc.CaptureGraph():
                    runner.capture_next()
                case rpc.ComputeLogits(data, pages):
                    runner.logits(decode_forward(data), pages)
                case rpc.FetchRows(rows) if runner.last_logits is not None:
                    runner.last_logits.rows(rows)
                case rpc.AdapterPair() | rpc.AddAdapter() | rpc.DropAdapter() | rpc.PutAdapter() if bank is not None:
                    bank.apply(message)
                case _:
                    raise ValueError(f"{type(message).__name__} is not valid for a loaded engine")

    def send_heartbeats(self) -> None:
        """Sends heartbeats until the connection is closed."""
        try:
            while True:
                self.connection.send(rpc.Heartbeat())
                threading.Event().wait(rpc.HEARTBEAT_SECONDS)
        except rpc.ConnectionClosed:
            return

    def exit_with_rank_0(self) -> None:
        """Exits when rank 0 closes the connection. It runs in a thread, as the main thread may be in a collective."""
        self.connection.wait_closed()
        logging.shutdown()
        os._exit(0)


def run(worker: RankWorker, node: int, local: int) -> int:
    """Sends `Hello` if no other host has, and executes the messages of rank 0. Returns the exit code."""
    connection = worker.connection
    with contextlib.suppress(rpc.ConnectionClosed):
        if not node:
            connection.send(rpc.Hello(rpc.VERSION, socket.gethostname(), node, local))
        for work in (worker.send_heartbeats, worker.exit_with_rank_0):
            threading.Thread(target=work, daemon=True).start()
        try:
            worker.serve()
        except rpc.ConnectionClosed:
            return 0
        except Exception as error:
            user = isinstance(error, ConfigError)
            if not user:
                log.exception("a rank failed")
            for handler in logging.getLogger().handlers:
                handler.flush()  # rank 0 kills this process when it gets the message
            connection.send(rpc.WorkerFailed(error_summary(error), user))
            return 1
    return 0


def error_summary(error: BaseException) -> str:
    """Returns a summary of an error in one line."""
    first = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, ConfigError):
        return first
    if is_out_of_memory(error) or type(error).__name__ == "AcceleratorError":
        return f"ran out of memory, or its device failed ({first})"
    return f"failed: {type(error).__name__}: {first}"


def main(
    argv: list[str] | None = None, prepare: Callable[[], object] = lambda: None, load: LoadModel = load_model
) -> int:
    """Runs a rank and exits the process.

    Args:
        argv: arguments; None: those of the process.
        prepare: called first, for example to configure logging.
        load: see `load_engine`.
    """
    parser = argparse.ArgumentParser(prog="runtime.executor.rank_worker", description="started by a rank, not by hand")
    parser.add_argument("--socket", type=int, required=True)
    parser.add_argument("--node", type=int, default=0)
    parser.add_argument("--local", type=int, default=0)
    parser.add_argument("--device", type=int)
    args = parser.parse_args(argv)
    prepare()
    connection = rpc.RpcConnection(socket.socket(fileno=args.socket))
    code = run(RankWorker(connection, args.device, load), args.node, args.local)
    sys.stdout.flush()
    sys.stderr.flush()
    logging.shutdown()
    os._exit(code)  # a normal exit would wait for a process group whose other ranks have exited


if __name__ == "__main__":
    sys.exit(main())

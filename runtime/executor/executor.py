"""Rank 0 of a tensor parallel replica: starts and connects the other ranks, and sends them each step."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from runtime.config import EngineConfig
from runtime.distributed import process_group as groups
from runtime.distributed.gpu import check_devices, device_name
from runtime.engine.engine import Engine
from runtime.engine.setup import LoadModel, load_engine
from runtime.errors import ConfigError, ReplicaLost
from runtime.executor import rpc
from runtime.executor.monitor import WorkerMonitor
from runtime.executor.rank_launcher import RANK_COMMAND, WorkerPlacement, start_workers
from runtime.executor.rank_worker import error_summary, file_digests_of
from runtime.executor.serialization import encode_blocks, encode_forward
from runtime.lora.adapter_checkpoint import Adapter
from runtime.lora.adapter_weights import LoRAWeights
from runtime.scheduling.step_plan import DenoiseBlocks, PageWrites, StateWrite, StepPlan
from runtime.weights.checkpoint import Checkpoint
from runtime.weights.hub import Progress
from runtime.weights.loader import load_model
from runtime.worker.model_runner import ModelRunner
from runtime.worker.next_step import NextStep

# Errors of gloo and of torch's file store. Errors of CUDA name timeouts too, but say nothing about the other ranks.
RANK_TIMED_OUT = re.compile(r"\A(Wait timeout|Timeout waiting for key)|gloo.*timed out", re.IGNORECASE | re.DOTALL)
TIMED_OUT = re.compile("timed ?out|timeout", re.IGNORECASE)  # in other errors of torch.distributed
CHECK_STEPS = 1024  # interval in which the tables of the ranks are compared
CAUSE_SECONDS = 1.0  # time after an error in which the monitor may detect a lost rank as its cause


def is_rank_timeout(error: Exception) -> bool:
    """Whether a collective or a store of torch has waited too long for another rank."""
    pattern = TIMED_OUT if isinstance(error, dist.DistError) else RANK_TIMED_OUT
    return isinstance(error, RuntimeError) and pattern.search(str(error)) is not None


class MultiprocExecutor:
    """Starts and connects all ranks of a replica, and loads engines on them, one after the other.

    This process is rank 0. The replica is *lost* if a rank exits, fails or hangs: then no step can complete.

    Args:
        size: number of ranks.
        placement: hosts and devices of the ranks.
        seconds: timeout of collectives and replies.
        on_lost: called from another thread with the reason when the replica is lost. By default it does nothing, and
            callers that wait for the replica get an error.
    """

    def __init__(
        self,
        size: int,
        placement: WorkerPlacement,
        seconds: float,
        on_lost: Callable[[str], None] = lambda reason: None,
    ) -> None:
        self.on_lost = on_lost
        self.group = groups.SINGLE_RANK
        file = groups.create_store_file() if placement.nodes == 1 else None
        try:
            self.workers = start_workers(size, placement, seconds, () if file is None else (file,))
        except BaseException:
            if file is not None:
                os.close(file)
            raise
        try:
            self.monitor = WorkerMonitor(self.workers, seconds, self._on_lost)
        except BaseException:
            self._end_workers()
            raise
        try:
            if file is None:
                store = groups.make_store(placement.address, seconds)
            else:
                store = groups.open_store_file(file, seconds)
            port = store.port if file is None else 0
            for worker in self.workers:
                own = placement.device_of(worker.hello.local)
                worker.connection.send(rpc.Join(worker.rank, size, placement.address, port, file, seconds, own))
            device = torch.device(placement.device_of(0))
            with self._explain_failures():
                self._check_device_names(device)
                self.group = groups.init_process_group(
                    0, size, store, device, seconds, placement.address, same_host=file is not None
                )
        except BaseException:
            self.close()
            raise

    def _check_device_names(self, device: torch.device) -> None:
        """Raises ConfigError if a rank has another model of device than `device`, that of rank 0.

        Each rank samples the tokens itself. Another model may round differently, and then sample another token.
        """
        own, names = device_name(device), self.monitor.gather_replies(rpc.DeviceSelected)
        for worker in self.workers:
            reply = names[worker.rank]
            assert isinstance(reply, rpc.DeviceSelected)
            if reply.name != own:
                raise ConfigError(
                    f"--tensor-parallel-size {len(self.workers) + 1}: {worker.name} has the device {reply.name!r}, but "
                    f"rank 0 has {own!r}; only equal devices sample equal tokens, so select GPUs of one model with "
                    "--device-ids, or use equal hosts"
                )

    def load(
        self,
        config: EngineConfig,
        progress: Progress | None = None,
        load: LoadModel = load_model,
        chat_template: str | None = None,
    ) -> Engine:
        """Loads an engine on all ranks.

        Args:
            chat_template: see `load_engine`.

        Raises:
            ConfigError: as `load_engine`; also if the ranks have different files.
            ReplicaLost: a rank has exited or failed.
        """

        def start_ranks(checkpoint: Checkpoint) -> None:
            """Loads the engine on the other ranks too, after rank 0 has downloaded what they may share."""
            own = file_digests_of(config, checkpoint)
            self.broadcast(rpc.CheckFiles(config))
            for rank, seen in self.monitor.gather_replies(rpc.FilesSeen).items():
                assert isinstance(seen, rpc.FilesSeen)
                if seen.files != own:
                    names = {name for name in own.keys() | seen.files.keys() if own.get(name) != seen.files.get(name)}
                    raise ConfigError(
                        f"--model: rank {rank} has other files than rank 0: {', '.join(sorted(names)[:4])} differ; "
                        "give all hosts the same checkpoint and adapters"
                    )
            self.broadcast(rpc.LoadEngine())

        with self._explain_failures():
            self.monitor.serving = False
            engine = load_engine(config, progress, load, self.group, chat_template=chat_template, on_files=start_ranks)
            self.monitor.gather_replies(rpc.EngineLoaded)
        assert isinstance(engine.runner, ModelRunner)
        engine.runner = DistributedRunner(engine.runner, self)
        if isinstance(engine.lora_manager.backend, LoRAWeights):
            engine.lora_manager.backend = DistributedLoRABackend(engine.lora_manager.backend, self)
        self.monitor.serving = True
        return engine

    def unload(self) -> None:
        """Unloads the engine of the other ranks, so that another one can be loaded."""
        if self.monitor.failure is None:
            self.broadcast(rpc.CloseEngine())

    def broadcast(self, message: rpc.Message) -> None:
        """Sends a message to all other ranks. Raises ReplicaLost if one has exited."""
        for worker in self.workers:
            try:
                worker.connection.send(message)
            except rpc.ConnectionClosed:
                raise ReplicaLost(worker.describe_exit()) from None

    @contextmanager
    def _explain_failures(self) -> Iterator[None]:
        """Replaces an error that is the effect of a lost rank by the error of that rank."""
        try:
            yield
        except ConfigError:
            raise
        except Exception as error:
            self.monitor.thread.join(CAUSE_SECONDS)
            self.monitor.check()
            if is_rank_timeout(error):
                raise ConfigError(
                    "--distributed-timeout-seconds: the ranks did not connect in time; raise it, or check the network "
                    "between their hosts"
                ) from error
            raise

    def step_guard(self) -> StepGuard:
        """Returns a context manager for the steps of this replica."""
        return StepGuard(self.monitor)

    def _on_lost(self, why: str) -> None:
        self._kill()
        self.on_lost(why)  # in a server, this exits the process
        self.group.abort()

    def _kill(self) -> None:
        for worker in self.workers:
            if worker.process is not None and worker.process.poll() is None:
                worker.process.kill()

    def close(self) -> None:
        """Ends the other ranks. Further calls do nothing."""
        self.monitor.closed = True
        self._end_workers()
        self.group.close()
        self.group = groups.SINGLE_RANK

    def _end_workers(self) -> None:
        for worker in self.workers:
            worker.connection.close()
        self._kill()
        for worker in self.workers:
            if worker.process is not None:
                worker.process.wait()


class StepGuard:
    """Context manager of a step, in which the monitor limits the time. After an error in it, the replica is lost.

    It raises ReplicaLost instead of other exceptions, because the other ranks wait for the rest of the step.
    """

    def __init__(self, monitor: WorkerMonitor) -> None:
        self.monitor = monitor

    def __enter__(self) -> None:
        if self.monitor.failure is not None:
            raise ReplicaLost(str(self.monitor.failure))
        self.monitor.step_started = self.monitor.clock()

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self.monitor.step_started = None
        if isinstance(error, Exception):
            if self.monitor.failure is None:
                self.monitor.thread.join(CAUSE_SECONDS)
            if self.monitor.failure is not None:
                raise ReplicaLost(str(self.monitor.failure)) from error
            raise ReplicaLost(f"rank 0 {error_summary(error)}") from error
        if self.monitor.failure is not None:  # the step completed although a rank was lost, so its results are invalid
            raise ReplicaLost(str(self.monitor.failure))
        if error is not None:
            self.monitor.fail(ReplicaLost("rank 0 was interrupted within a step, which the others wait for"))


class DistributedLoRABackend:
    """LoRA backend of rank 0.

    Every rank loads the adapters of the flags itself. Adapters that are loaded later, and slot assignments, are
    broadcast.

    Each broadcast runs in a step guard. If it is incomplete, the replica is lost, so no rank computes with wrong
    weights.

    Args:
        local: adapter weights of this rank.
        executor: the ranks.
    """

    def __init__(self, local: LoRAWeights, executor: MultiprocExecutor) -> None:
        self.local = local
        self.broadcast = executor.broadcast
        self.step_guard = executor.step_guard()
        self.read, self.touches, self.host_bytes = local.read, local.touches, local.host_bytes

    def add(self, name: str, adapter: Adapter) -> None:
        self.local.add(name, adapter)
        with self.step_guard:
            for tensor, pair in adapter.pairs.items():
                self.broadcast(rpc.AdapterPair(tensor, pair.lora_a.numpy(), pair.lora_b.numpy()))
            self.broadcast(rpc.AddAdapter(name, adapter.digest))

    def drop(self, name: str) -> None:
        self.local.drop(name)
        with self.step_guard:
            self.broadcast(rpc.DropAdapter(name))

    def put(self, slot: int, name: str) -> None:
        with self.step_guard:
            self.broadcast(rpc.PutAdapter(slot, name))
            self.local.put(slot, name)


class DistributedRunner:
    """Model runner of rank 0, which sends each step to the other ranks.

    The ranks have equal tables of tokens, states and pages, because each samples the same tokens. No rank sends them to
    another, so a difference would stay. Every `CHECK_STEPS` steps, checksums of the tables are compared.
    """

    def __init__(self, local: ModelRunner, executor: MultiprocExecutor) -> None:
        self.local = local
        self.executor = executor
        self.stats = local.stats
        local.notify_ranks = lambda rows: executor.broadcast(rpc.FetchRows(rows))
        local.notify_next = self._send_next
        local.notify_writes = lambda writes: executor.broadcast(rpc.WriteTables(writes, None))
        self.overlaps, self.launches_next = local.overlaps, local.launches_next
        self.must_split, self.results = local.must_split, local.results
        self._step_guard = executor.step_guard()
        self._num_sampled = 0  # steps; a launched forward may be abandoned, a sampling is not

    @contextmanager
    def step_context(self) -> Iterator[None]:
        with self._step_guard, self.local.step_context():
            yield

    def launch_forward(self, plan: StepPlan) -> None:
        if not self.local.has_launched(plan):
            self.executor.broadcast(rpc.Step(encode_forward(plan)))
        self.local.launch_forward(plan)

    def launch_sampling(self, blocks: DenoiseBlocks | None, following: NextStep | None = None) -> None:
        """See `Runner.launch_sampling`. The other ranks need no choice: they get the plan that rank 0 has chosen."""
        self.executor.broadcast(rpc.Sample(encode_blocks(blocks)))
        self.local.launch_sampling(blocks, following)

    def wait(self) -> StepPlan | None:
        """See `Runner.wait`. If the step does not follow, the other ranks get another `Step` instead."""
        plan = self.local.wait()
        self._num_sampled += 1
        if self._num_sampled % CHECK_STEPS == 0:
            self._check_tables()
        return plan

    def _send_next(self) -> None:
        """Sends the plan of the next forward, which may wait for ranks that need it first."""
        plan = self.local.next_plan()
        assert plan is not None
        self.executor.broadcast(rpc.Step(encode_forward(plan)))

    def _check_tables(self) -> None:
        """Ends the replica if another rank has other tables. It waits for the device."""
        self.executor.broadcast(rpc.CheckTables())
        checksums = self.executor.group.all_gather(self.local.states.checksums())  # [ranks, slots]
        different = (checksums != checksums[0]).cpu().nonzero().tolist()
        if different:
            slot = min(slot for _, slot in different)
            names = " and ".join(self.executor.workers[rank - 1].name for rank, other in different if other == slot)
            monitor = self.executor.monitor
            monitor.fail(
                ReplicaLost(f"request slot {slot} has other tokens, states or pages on {names} than on rank 0")
            )
            monitor.check()

    def write(self, writes: tuple[StateWrite, ...], page_writes: PageWrites | None) -> None:
        if writes or page_writes is not None:
            self.executor.broadcast(rpc.WriteTables(writes, page_writes))
            self.local.write(writes, page_writes)

    def capture_next(self) -> int:
        """See `ModelRunner.capture_next`. A captured step has collective operations, so all ranks capture together."""
        with self._step_guard:
            self.executor.broadcast(rpc.CaptureGraph())
            return self.local.capture_next()

    def logits(self, plan: StepPlan, pages: int) -> torch.Tensor:
        """See `ModelRunner.logits`."""
        with self._step_guard:
            self.executor.broadcast(rpc.ComputeLogits(encode_forward(plan), pages))
            return self.local.logits(plan, pages)


def on_gpus(config: EngineConfig) -> bool:
    return config.device == "cuda" or (config.device is None and torch.cuda.is_available())


def local_executor(config: EngineConfig, command: tuple[str, ...] = RANK_COMMAND) -> MultiprocExecutor:
    """Starts the ranks on the first devices of this host. Raises ConfigError if there are too few devices."""
    size, devices = config.tensor_parallel_size, None
    if on_gpus(config):
        devices = tuple(range(size))
        check_devices(devices, f"--tensor-parallel-size {size}")
        torch.cuda.set_device(0)
    return MultiprocExecutor(size, WorkerPlacement(devices, command=command), config.distributed_timeout_seconds)


def local_engine(
    config: EngineConfig, load: LoadModel = load_model, command: tuple[str, ...] = RANK_COMMAND
) -> tuple[Engine, MultiprocExecutor]:
    """Loads an engine, and returns it with the executor of its ranks. Close the engine first, then the executor."""
    ranks = local_executor(config, command)
    try:
        return ranks.load(config, load=load), ranks
    except BaseException:
        ranks.close()
        raise

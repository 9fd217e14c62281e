"""The rank that leads: it starts those of its host, brings all of them together, and tells them each step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from runtime.config import EngineConfig
from runtime.distributed import process_group as groups
from runtime.distributed.file_check import files_of
from runtime.distributed.monitor import Watch
from runtime.distributed.rank_launcher import Place, gather_peers
from runtime.distributed.rank_worker import sentence
from runtime.distributed.rpc import (
    Arrays,
    Close,
    Gone,
    Join,
    Load,
    Loaded,
    Look,
    Message,
    Rows,
    Seen,
    Step,
    Whole,
)
from runtime.distributed.serialization import block_arrays, step_arrays
from runtime.engine.engine import Engine
from runtime.engine.setup import LoadModel, load_engine
from runtime.engine.step_plan import BlockResults, DenoiseBlocks, StepPlan
from runtime.errors import ConfigError, ReplicaLost
from runtime.lora.adapter_weights import Bank
from runtime.lora.distributed_backend import LeadingBank
from runtime.weights import load_model
from runtime.weights.hub import Progress
from runtime.worker.model_runner import ModelRunner

CAUSE_SECONDS = 1.0  # after a failure, until the watch may have found the lost rank that caused it


class Ranks:
    """All ranks of a replica, this process being the first of them. Engines may be loaded one after the other.

    Args:
        size: how many. device: this one's; those of this host follow it as `place` says.
        seconds: how long anybody waits for another. lost: hears why the replica is lost, from another thread; by
            default whoever waits for it does.
    """

    def __init__(
        self, size: int, place: Place, seconds: float, lost: Callable[[str], None] = lambda sentence: None
    ) -> None:
        self.lost = lost
        self.group = groups.ALONE
        self.watch: Watch | None = None
        self.peers = gather_peers(size, place, seconds)
        try:
            self.watch = Watch(self.peers, seconds, self._lost)
            store = groups.meeting(place.address, seconds)
            near = place.nodes == 1
            for peer in self.peers:
                own = place.device_of(peer.hello.local)
                peer.wire.send(Join(peer.rank, size, place.address, store.port, seconds, own, near))
            device = torch.device(place.device_of(0))
            with self._together():
                self.group = groups.join(0, size, store, device, seconds, place.address, near=near)
        except BaseException:
            self.close()
            raise

    def load(self, config: EngineConfig, progress: Progress | None = None, load: LoadModel = load_model) -> Engine:
        """The replica's engine. ConfigError as `load_engine`; also where the ranks see different files."""
        assert self.watch is not None
        with self._together():
            self.watch.serving = False
            own = files_of(config, progress)  # who shares a disk finds it downloaded
            self.tell(Look(config))
            for rank, seen in self.watch.answers(Seen).items():
                assert isinstance(seen, Seen)
                if seen.files != own:
                    names = {name for name in own.keys() | seen.files.keys() if own.get(name) != seen.files.get(name)}
                    raise ConfigError(
                        f"--model: rank {rank} sees other files than rank 0: {', '.join(sorted(names)[:4])} differ; "
                        "give all hosts the same checkpoint and adapters"
                    )
            self.tell(Load())
            engine = load_engine(config, progress, load, self.group)
            self.watch.answers(Loaded)
        assert isinstance(engine.runner, ModelRunner)
        engine.runner = LeadingRunner(engine.runner, self)
        if isinstance(engine.lora_manager.backend, Bank):
            engine.lora_manager.backend = LeadingBank(engine.lora_manager.backend, self.tell, self.running())
        self.watch.serving = True
        return engine

    def unload(self) -> None:
        """Have the others drop their engines; another may be loaded then."""
        assert self.watch is not None
        if self.watch.failure is None:
            self.tell(Close())

    def tell(self, message: Message, arrays: Arrays | None = None) -> None:
        """All others. ReplicaLost if one has gone."""
        for peer in self.peers:
            try:
                peer.wire.send(message, arrays)
            except Gone:
                raise ReplicaLost(peer.end()) from None

    @contextmanager
    def _together(self) -> Iterator[None]:
        """What fails here because a rank was lost says so."""
        assert self.watch is not None
        try:
            yield
        except ConfigError:
            raise
        except Exception as error:
            self.watch.thread.join(CAUSE_SECONDS)
            self.watch.check()
            if isinstance(error, RuntimeError | ReplicaLost) and "imed out" in str(error):
                raise ConfigError(
                    "--distributed-timeout-seconds: the ranks did not come together in time; see that their hosts "
                    "reach each other"
                ) from error
            raise

    def running(self) -> Running:
        assert self.watch is not None
        return Running(self.watch)

    def _lost(self, why: str) -> None:
        self._kill()
        self.lost(why)  # a server's process ends with this
        self.group.abort()

    def _kill(self) -> None:
        for peer in self.peers:
            if peer.process is not None and peer.process.poll() is None:
                peer.process.kill()

    def close(self) -> None:
        """End the other ranks. Closing again does nothing."""
        if self.watch is not None:
            self.watch.closed = True
        for peer in self.peers:
            peer.wire.close()
        self._kill()
        for peer in self.peers:
            if peer.process is not None:
                peer.process.wait()
        self.group.close()
        self.group = groups.ALONE


class Running:
    """A step under way: its time is watched, and what it fails with has lost the replica."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch

    def __enter__(self) -> None:
        if self.watch.failure is not None:
            raise ReplicaLost(str(self.watch.failure))
        self.watch.since = self.watch.clock()

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self.watch.since = None
        if isinstance(error, Exception):
            if self.watch.failure is None:
                self.watch.thread.join(CAUSE_SECONDS)
            if self.watch.failure is not None:
                raise ReplicaLost(str(self.watch.failure)) from error
            raise ReplicaLost(f"rank 0 {sentence(error)}") from error
        if self.watch.failure is not None:  # the step ended because nothing waits for a lost rank: it is worth nothing
            raise ReplicaLost(str(self.watch.failure))
        if error is not None:
            self.watch.fail(ReplicaLost("rank 0 was interrupted within a step, which the others wait for"))


class LeadingRunner:
    """The leading rank's `Runner`: each step is told to the others, who do the same."""

    def __init__(self, own: ModelRunner, ranks: Ranks) -> None:
        self.own = own
        self.ranks = ranks
        self.stats = own.stats
        own.notify_ranks = lambda rows: ranks.tell(Rows(), {"rows": rows})
        self._running = ranks.running()
        self._stands: Any = None  # positions of the last step: the same ones mean that all its geometry is

    def run(self, plan: StepPlan) -> BlockResults | None:
        with self._running:
            same = plan.positions is self._stands
            self._stands = plan.positions
            self.ranks.tell(Step(same, plan.active_lora_modules), step_arrays(plan, same=same))
            # no step begins ahead: others would wait for the rest of one that everybody may have left by then
            return self.own.run(replace(plan, make_blocks=lambda: self._sampled(plan), try_launch_next=bool))

    def _sampled(self, plan: StepPlan) -> DenoiseBlocks | None:
        blocks = plan.blocks
        self.ranks.tell(*block_arrays(blocks))
        return blocks

    def logits(self, plan: StepPlan, pages: int) -> torch.Tensor:
        """See `ModelRunner`."""
        with self._running:
            self.ranks.tell(Whole(pages, plan.active_lora_modules), step_arrays(plan, same=False))
            return self.own.logits(plan, pages)

    def set_overlap_callback(self, work: Callable[[], None]) -> bool:
        return self.own.set_overlap_callback(work)

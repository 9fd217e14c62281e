"""Tests that a rank that exits, hangs or does not start ends the replica with one sentence."""

import contextlib
import os
import queue
import signal
import socket
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist

from runtime import LLM, SamplingParams
from runtime.errors import ConfigError, ReplicaLost
from runtime.executor import executor, monitor
from runtime.executor.executor import MultiprocExecutor
from runtime.executor.monitor import WorkerHandle, WorkerMonitor
from runtime.executor.rank_launcher import WorkerPlacement
from runtime.executor.rpc import Heartbeat, Hello, RpcConnection
from tests.golden import GOLDEN
from tests.wait import TIMEOUT, wait_until

HOUR = 3600
TWO_GPUS = [
    pytest.mark.gpu2,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices"),
]
FLAGS = {"device": "cpu", "skip_tokenizer": True, "tensor_parallel_size": 2, "distributed_timeout_seconds": HOUR}


@pytest.fixture(autouse=True)
def long_limits(monkeypatch):
    """Raises time limits, so that a rank's exit code is known before a failure is reported, even on a slow machine."""
    monkeypatch.setattr(monitor, "END_SECONDS", HOUR)
    monkeypatch.setattr(executor, "CAUSE_SECONDS", HOUR)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=TWO_GPUS)])
def test_a_killed_rank_ends_a_step_that_waits_for_it(device):
    """The step ends without a time limit: those of these tests are an hour."""
    with LLM(str(GOLDEN / "llada2_tiny"), **FLAGS | {"device": device, "num_pages": 256}) as llm:
        process = llm._ranks.workers[0].process
        ask = SamplingParams(max_tokens=500, ignore_eos=True, temperature=0, decoding={"accept_threshold": 1.0})
        stream = llm.stream([5, 6, 7], ask)
        next(stream)
        os.kill(process.pid, signal.SIGSTOP)  # the next step waits for it until it is killed
        threading.Timer(0.3, os.kill, (process.pid, signal.SIGKILL)).start()
        with pytest.raises(ReplicaLost, match=r"^rank 1 was killed by signal 9"):
            list(stream)
        with contextlib.suppress(ReplicaLost):
            llm.generate([[5]], SamplingParams(max_tokens=1))
            pytest.fail("it went on without the rank")


def test_a_table_that_differs_ends_the_replica():
    """Otherwise the answers of all later steps would be wrong, as no rank sends tokens to another."""
    with LLM(str(GOLDEN / "llada2_tiny"), **FLAGS) as llm:
        stream = llm.stream([5, 6, 7], SamplingParams(max_tokens=64, ignore_eos=True))
        next(stream)
        states = llm.engine.runner.local.states
        states.tokens[states.entries(2, np.arange(3))] += 1
        states.pages[4] += 1
        for _ in range(2):
            with pytest.raises(ReplicaLost, match=r"^request slot 2 has other tokens, .* on rank 1 than on rank 0$"):
                list(stream) or llm.generate([[5]], SamplingParams(max_tokens=1))


def test_ranks_end_if_their_monitor_cannot_start(monkeypatch):
    started, start_workers = [], executor.start_workers

    def start(*arguments):
        started.extend(start_workers(*arguments))
        return started

    def refuse(*_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(executor, "start_workers", start)
    monkeypatch.setattr(executor, "WorkerMonitor", refuse)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        MultiprocExecutor(2, WorkerPlacement(), HOUR)
    (worker,) = started
    assert worker.process.poll() is not None


def test_a_step_that_is_interrupted(monkeypatch):
    with LLM(str(GOLDEN / "llada2_tiny"), **FLAGS) as llm:

        def interrupted(plan):
            raise KeyboardInterrupt

        monkeypatch.setattr(llm.engine.runner.local, "launch_forward", interrupted)
        for what in (KeyboardInterrupt, ReplicaLost):
            with pytest.raises(what):
                llm.generate([[5, 6]], SamplingParams(max_tokens=4))
        process = llm._ranks.workers[0].process
    assert process.poll() is not None, "the rank outlives its LLM"


@pytest.fixture
def wires():
    ours, theirs = socket.socketpair()
    yield RpcConnection(ours), RpcConnection(theirs)
    ours.close()
    theirs.close()


class Watched:
    """A monitor of one rank, with a clock that the test sets. Limits: 10 s of silence, 100 s per step."""

    def __init__(self, wire):
        self.now = 0.0
        self.reads = 0
        self.reasons = queue.Queue()
        peer = WorkerHandle(1, wire, Hello(1, socket.gethostname(), 0, 1), None)
        self.watch = WorkerMonitor([peer], 100.0, self.reasons.put, silence=10.0, clock=self.clock)

    def clock(self):
        self.reads += 1
        return self.now

    def until_checked(self):
        """Waits until the monitor has compared its limits with the current time.

        A message and each comparison read the clock once. After four reads one comparison has begun and ended.
        """
        reads = self.reads
        wait_until(lambda: self.reads >= reads + 4)

    def reason(self):
        return self.reasons.get(timeout=TIMEOUT)


def test_silence_is_allowed_only_while_a_rank_loads(wires):
    ours, theirs = wires
    watched = Watched(ours)
    theirs.send(Heartbeat())
    watched.until_checked()
    watched.now = 60.0
    watched.until_checked()
    assert watched.reasons.empty()
    watched.watch.serving = True
    watched.now = 90.0
    assert watched.reason().startswith("rank 1 has sent nothing for")
    with pytest.raises(ReplicaLost, match="has sent nothing"):
        watched.watch.check()


def test_a_step_that_takes_too_long(wires):
    ours, theirs = wires
    watched = Watched(ours)
    watched.watch.step_started = 0.0
    watched.now = 99.0
    theirs.send(Heartbeat())
    watched.until_checked()
    assert watched.reasons.empty()
    watched.now = 100.5
    assert watched.reason() == "a step took longer than --distributed-timeout-seconds, 100 s"


def test_a_remote_rank_that_disconnects(wires):
    ours, theirs = wires
    watched = Watched(ours)
    theirs.close()
    assert watched.reason() == "rank 1 has gone"


def num_stores():
    """Returns how many files of stores this process has open."""
    links = [os.readlink(path) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    return sum("unmask-store" in link for link in links)


def test_a_rank_that_cannot_be_started():
    command = (sys.executable, "-c", "import sys; sys.exit(3)")
    before = num_stores()
    with pytest.raises(ConfigError, match="could not be started: it ended with exit code 3"):
        MultiprocExecutor(2, WorkerPlacement(command=command), HOUR)
    assert num_stores() == before


def test_a_rank_that_does_not_start_in_time():
    with pytest.raises(ConfigError, match="did not start in time"):
        MultiprocExecutor(2, WorkerPlacement(command=("sh", "-c", f"exec sleep {HOUR}")), 0.1)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (RuntimeError("[/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 1000ms for recv operation"), True),
        (RuntimeError("Gloo connectFullMesh failed with [/gloo/pair.cc:144]\ntimed out connecting"), True),
        (RuntimeError("Wait timeout"), True),
        (RuntimeError("Timeout waiting for key: 0 after 1000 ms"), True),
        (dist.DistStoreError("store->get('0') got error: wait timeout after 1000ms"), True),
        (dist.DistNetworkError("The client socket has timed out after 1000ms"), True),
        (dist.DistBackendError("NCCL error: invalid usage"), False),
        (RuntimeError("CUDA error: the launch timed out and was terminated"), False),
        (RuntimeError("hub: read timeout"), False),
        (TimeoutError("timed out"), False),
    ],
)
def test_only_a_timeout_of_another_rank_is_one_of_the_flag(error, expected):
    assert executor.is_rank_timeout(error) is expected


def test_nodes_that_do_not_connect():
    with pytest.raises(ConfigError, match=r"the ranks of node 1 did not connect to 127.0.0.1:\d+ within"):
        MultiprocExecutor(2, WorkerPlacement(nodes=2), 0.1)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"--master-port {port}: cannot be listened on"):
            MultiprocExecutor(2, WorkerPlacement(nodes=2, port=port), HOUR)


@pytest.mark.parametrize(
    ("key", "flags", "says"),
    [
        ("dream", {}, r"--tensor-parallel-size 2: must divide the number of the model's .* heads, 7"),
        ("sdar", {"expert_parallel_size": 2}, "the model has no experts to distribute"),
    ],
)
def test_a_refusal_by_a_rank_is_reported(key, flags, says):
    with pytest.raises(ConfigError, match=says):
        LLM(str(GOLDEN / key), **FLAGS, **flags)


def test_ranks_that_see_other_files(monkeypatch, tmp_path):
    monkeypatch.setattr(executor, "file_digests_of", lambda config, checkpoint: {"config.json": "x"})
    with pytest.raises(ConfigError, match=r"rank 1 has other files than rank 0: .*config.json.* differ"):
        LLM(str(GOLDEN / "llada2_tiny"), **FLAGS)

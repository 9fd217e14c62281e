"""Ranks that go, hang or do not come: one sentence, soon."""

import contextlib
import os
import signal
import socket
import sys
import threading
import time

import pytest

from runtime import LLM, SamplingParams
from runtime.distributed.wire import Beat, Hello, Wire
from runtime.errors import ConfigError, ReplicaLost
from runtime.ranks.lead import Ranks
from runtime.ranks.start import Place
from runtime.ranks.watch import Peer, Watch
from tests.golden import GOLDEN

FLAGS = {"device": "cpu", "skip_tokenizer": True, "tensor_parallel_size": 2, "distributed_timeout_seconds": 100}


def test_a_killed_rank_is_told_at_once():
    with LLM(str(GOLDEN / "llada2_tiny"), **FLAGS) as llm:
        process = llm._ranks.peers[0].process
        ask = SamplingParams(max_tokens=500, ignore_eos=True, temperature=0, decoding={"accept_threshold": 1.0})
        stream = llm.stream([5, 6, 7], ask)
        next(stream)
        threading.Timer(0.3, os.kill, (process.pid, signal.SIGKILL)).start()
        began = time.monotonic()
        with pytest.raises(ReplicaLost, match=r"^rank 1 was killed by signal 9"):
            list(stream)
        assert time.monotonic() - began < 10
        with contextlib.suppress(ReplicaLost):
            llm.generate([[5]], SamplingParams(max_tokens=1))
            pytest.fail("it went on without the rank")


def test_a_step_that_is_interrupted(monkeypatch):
    with LLM(str(GOLDEN / "llada2_tiny"), **FLAGS) as llm:

        def interrupted(plan):
            raise KeyboardInterrupt

        monkeypatch.setattr(llm.engine.runner.own, "run", interrupted)
        for what in (KeyboardInterrupt, ReplicaLost):
            with pytest.raises(what):
                llm.generate([[5, 6]], SamplingParams(max_tokens=4))


def test_processes_end_with_their_llm():
    llm = LLM(str(GOLDEN / "llada2_tiny"), **FLAGS)
    process = llm._ranks.peers[0].process
    llm.close()
    assert process.poll() is not None


@pytest.fixture
def wires():
    ours, theirs = socket.socketpair()
    yield Wire(ours), Wire(theirs)
    ours.close()
    theirs.close()


def watched(wire, seconds=100.0, silence=10.0):
    told = []
    heard = threading.Event()

    def lost(sentence):
        told.append(sentence)
        heard.set()

    peer = Peer(1, wire, Hello(1, 0, socket.gethostname(), 0, 1), None)
    return Watch([peer], seconds, lost, silence), told, heard


def test_a_rank_that_says_nothing_any_more(wires):
    ours, theirs = wires
    watch, told, heard = watched(ours, silence=0.5)
    theirs.send(Beat(0))
    assert not heard.wait(0.8)  # while it loads it may
    watch.serving = True
    assert heard.wait(5)
    assert told[0].startswith("rank 1 has said nothing for")
    with pytest.raises(ReplicaLost, match="has said nothing"):
        watch.check()


def test_a_step_that_takes_too_long(wires):
    ours, theirs = wires
    watch, told, heard = watched(ours, 0.5)
    watch.since = time.monotonic()
    for _ in range(20):
        theirs.send(Beat(0))
        if heard.wait(0.1):
            break
    assert told == ["a step took longer than --distributed-timeout-seconds, 0.5 s"]


def test_a_rank_on_another_host_that_goes(wires):
    ours, theirs = wires
    _, told, heard = watched(ours)
    theirs.close()
    assert heard.wait(5)
    assert told == ["rank 1 has gone"]


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ((sys.executable, "-c", "import sys; sys.exit(3)"), "could not be started: it ended with exit code 3"),
        ((sys.executable, "-c", "import time; time.sleep(60)"), "did not start in time"),
    ],
)
def test_ranks_that_do_not_come(command, says):
    with pytest.raises(ConfigError, match=says):
        Ranks(2, Place(command=command), 2.0)


def test_hosts_that_do_not_come():
    with pytest.raises(ConfigError, match=r"the ranks of node 1 did not come to 127.0.0.1:\d+ within"):
        Ranks(2, Place(nodes=2, port=free_port()), 0.5)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"--master-port {port}: cannot be listened on"):
            Ranks(2, Place(nodes=2, port=port), 0.5)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as found:
        return found.getsockname()[1]


@pytest.mark.parametrize(
    ("key", "flags", "says"),
    [
        ("dream", {}, r"--tensor-parallel-size 2: .* heads are 7, which it does not divide"),
        ("sdar", {"expert_parallel_size": 2}, "the model has no experts to deal out"),
    ],
)
def test_what_a_rank_refuses_is_told(key, flags, says):
    with pytest.raises(ConfigError, match=says):
        LLM(str(GOLDEN / key), **FLAGS, **flags)


def test_ranks_that_see_other_files(monkeypatch, tmp_path):
    from runtime.ranks import lead

    monkeypatch.setattr(lead, "files_of", lambda config, progress: {"config.json": "x"})
    with pytest.raises(ConfigError, match=r"rank 1 sees other files than rank 0: .*config.json.* differ"):
        LLM(str(GOLDEN / "llada2_tiny"), **FLAGS)

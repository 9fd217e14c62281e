"""Tests of a server with two tensor parallel ranks, and of a lost rank, which ends only its replica, and at once."""

import concurrent.futures
import json
import os
import shutil
import signal
import subprocess
import sys

import psutil
import pytest

from runtime.config import parse
from runtime.errors import ConfigError
from tests.server.harness import ROOT, ServerProcess, has_ended, serving, sse
from tests.server.test_start_failures import start
from tests.wait import TIMEOUT, wait_until

pytestmark = pytest.mark.processes

TWO = ("--device", "cpu", "--tensor-parallel-size", "2", "--num-pages", "256", "--max-num-reqs", "8")
# Sets a key in the store behind each port, and prints the ports that took it. The first one, its own, always does.
STRANGER = """
import os, sys, threading, time
from runtime.distributed.process_group import make_store
own = make_store("127.0.0.1", 60)
def set_key(port):
    make_store("127.0.0.1", 5, port).set("key", "value")
    print(port, flush=True)
print(own.port)
for port in [own.port, *map(int, sys.argv[1:])]:
    threading.Thread(target=set_key, args=(port,), daemon=True).start()
own.wait(["key"])
time.sleep(2)  # the others have as long to take theirs
os._exit(0)
"""
LONG = {"prompt": "x", "max_tokens": 1800, "ignore_eos": True, "decoding": {"accept_threshold": 1.0}}


@pytest.fixture(scope="module")
def server():
    with serving(*TWO) as made:
        yield made


def rank_of(backend):
    (rank,) = [p for p in backend.children() if "runtime.server.engine_process.rank" in p.cmdline()]
    return rank


@pytest.mark.matrix
@pytest.mark.parametrize("whom", ["the other rank", "the rank that leads"])
def test_a_killed_rank_ends_the_requests_of_its_replica(server: ServerProcess, whom):
    (backend,) = server.backends()
    rank = rank_of(backend)
    before = server.metrics()["unmask_engine_steps_total"]
    with concurrent.futures.ThreadPoolExecutor(8) as pool, server.client() as client:
        pending = [pool.submit(client.post, "/generate", json=LONG) for _ in range(3)]
        stream = pool.submit(client.post, "/generate", json=LONG | {"stream": True})
        server.until(lambda: server.metrics()["unmask_engine_steps_total"] > before + 3)
        server.until_metric('unmask_replica_requests{replica="0"}', 4)
        assert server.metrics()['unmask_replica_work_tokens{replica="0"}'] > 100
        os.kill(rank.pid if whom == "the other rank" else backend.pid, signal.SIGKILL)
        answers = [f.result(timeout=TIMEOUT) for f in pending]
        events = sse(stream.result(timeout=TIMEOUT).text)
        for answer in answers:
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_backend")
        assert json.loads(events[-2])["event"] == "error"
        if whom == "the other rank":
            assert "rank 1 was killed by signal 9" in answers[0].json()["error"]["message"]
        server.until_ready()
        assert client.post("/generate", json=LONG | {"max_tokens": 9}).json()["usage"]["completion_tokens"] == 9
    wait_until(lambda: has_ended(backend) and has_ended(rank), "the end of both ranks")


def test_no_process_has_a_store_that_takes_keys_from_strangers(server: ServerProcess):
    server.until_ready()
    tree = psutil.Process(server.process.pid).children(recursive=True)
    every = [found for process in tree for found in process.net_connections("tcp") if found.status == "LISTEN"]
    command = [sys.executable, "-c", STRANGER, *(str(found.laddr.port) for found in every)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT, check=True)
    control, *taken = done.stdout.split()
    assert taken == [control]


@pytest.mark.matrix
def test_ranks_and_replicas_answer_alike(server: ServerProcess):
    params = {"max_tokens": 24, "ignore_eos": True}  # long enough to run together
    asked = [{"prompt": f"{n} + 4 =", "temperature": n % 2, "seed": n, **params} for n in range(6)]
    with serving("--device", "cpu", "--num-pages", "256", "--data-parallel-size", "2") as copies:
        copies.until_metric("unmask_backends_ready", 2)
        with copies.client() as one, server.client() as other, concurrent.futures.ThreadPoolExecutor(6) as pool:
            theirs = list(pool.map(lambda ask: one.post("/generate", json=ask).json(), asked))
            ours = [other.post("/generate", json=ask).json() for ask in asked]
        assert [(a["token_ids"], a["nfe"]) for a in ours] == [(a["token_ids"], a["nfe"]) for a in theirs]
        copies.until_idle()

        def settled() -> bool:
            found = copies.metrics()
            return (
                all(found[f'unmask_replica_up{{replica="{n}"}}'] == 1 for n in range(2))
                and all(found[f'unmask_replica_work_tokens{{replica="{n}"}}'] == 0 for n in range(2))
                and all(found[f'unmask_replica_generated_tokens_total{{replica="{n}"}}'] > 0 for n in range(2))
            )

        copies.until(settled)


@pytest.mark.slow
def test_a_rank_that_hangs_is_replaced(server: ServerProcess):
    (backend,) = server.backends()
    os.kill(rank_of(backend).pid, signal.SIGSTOP)
    with server.client() as client:
        answer = client.post("/generate", json=LONG)
        assert answer.status_code == 503
        assert "rank 1 has said nothing for" in answer.json()["error"]["message"]
        server.until_ready()


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--tensor-parallel-size", "4", "--expert-parallel-size", "2"), "must be 1 or --tensor-parallel-size, 4"),
        (("--num-nodes", "2", "--tensor-parallel-size", "3"), "--num-nodes 2 does not divide --tensor-parallel-size 3"),
        (("--num-nodes", "2", "--tensor-parallel-size", "2"), "--master-port: needed with --num-nodes"),
        (("--node-rank", "1"), "must be less than --num-nodes, 1"),
        (("--master-port", "7"), "require --num-nodes above 1; leave them out"),
    ],
)
def test_inconsistent_flags_are_refused(flags, says):
    with pytest.raises(ConfigError, match=says):
        parse(["--device", "cpu", *flags], {})


def test_a_node_ends_if_node_0_does_not_join_in_time():
    flags = ["--num-nodes", "2", "--node-rank", "1", "--tensor-parallel-size", "2", "--master-addr", "127.0.0.1"]
    flags += ["--master-port", "9", "--distributed-timeout-seconds", "1"]
    assert "node 0 did not accept connections within --distributed-timeout-seconds, 1 s" in start(*flags)[-1]


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("ip"), reason="needs root, and iproute2")
def test_two_hosts_serve_one_model():
    """Runs two nodes in two network namespaces, which a veth pair connects."""
    names = [f"unmask{os.getpid()}{side}" for side in "ab"]

    def ip(*arguments):
        subprocess.run(["ip", *arguments], check=True)

    try:
        for name in names:
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        ip("link", "add", "a0", "netns", names[0], "type", "veth", "peer", "name", "b0", "netns", names[1])
        for name, device, address in zip(names, ("a0", "b0"), ("10.71.0.1", "10.71.0.2"), strict=True):
            ip("-n", name, "addr", "add", f"{address}/24", "dev", device)
            ip("-n", name, "link", "set", device, "up")
        _serve_on(names)
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False)


def _serve_on(names):
    def start(rank):
        command = [
            "ip", "netns", "exec", names[rank], sys.executable, "-m", "runtime.server", "--host", "127.0.0.1",
            "--port", "8123", *TWO, "--num-nodes", "2", "--node-rank", str(rank), "--master-addr", "10.71.0.1",
            "--master-port", "8200", "--distributed-timeout-seconds", "600",
        ]  # fmt: skip
        return subprocess.Popen(command, cwd=ROOT)

    def ask(path, *more):
        command = ["ip", "netns", "exec", names[0], "curl", "-s", "-f", f"http://127.0.0.1:8123{path}", *more]
        return subprocess.run(command, capture_output=True, text=True)

    body = ("-d", json.dumps(LONG | {"max_tokens": 9}), "-H", "content-type: application/json")
    processes = [start(1), start(0)]
    try:
        for kill in (True, False):
            wait_until(lambda: ask("/ready").returncode == 0)
            assert json.loads(ask("/generate", *body).stdout)["usage"]["completion_tokens"] == 9
            if kill:  # kills the rank on the other host, which is restarted
                (rank,) = psutil.Process(processes[0].pid).children()
                rank.kill()
                wait_until(lambda: ask("/ready").returncode != 0)
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(TIMEOUT)

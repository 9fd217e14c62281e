"""Compares a server under load on a failing machine with one on a working machine: ``python -m tests.siege.faults``.

Each fault has a control: the same server, clients and seconds without the fault. The bars are in `missed`, and
described in docs/operations/security.md. The exit code is 1 if a bar is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import re
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

import tests.siege.attacks  # noqa: F401 (registers the attacks)
from tests.server.checkpoint import without_tokenizer_json
from tests.siege import clients, observers, verdict
from tests.siege.attacker import attacker
from tests.siege.meter import MB, Meter
from tests.siege.processes import Child, children
from tests.siege.registry import ATTACKS
from tests.siege.server import MODULE, ROOT, Besieged, SiegeError

CLIENTS = 6
SECONDS = 20.0  # seconds of load, with and without the fault
FIRST_SECONDS = 3.0  # seconds of load before the fault
READY_SECONDS = 60.0  # seconds from the loss of a process until /ready is 200 again
ANSWER_SECONDS = clients.GIVE_UP
ALLOWANCE_MB = 400.0  # memory limit above what the idle server uses
DAY = 86_400.0
JUMPS = (DAY, -2 * DAY, 3650 * DAY, 0.0)  # seconds of the wall clock's offset, in this order
JUMP_SECONDS = 2.0
UNREAD_REQUESTS = 6000  # their lines fill a pipe of 64 KiB and the 2,000 lines that a process keeps
PROMPTS = ("12 + 30 =", "Sort: 5 3 9 1.", "Spell: lantern.")
ERROR = re.compile(r'\d+: {\s*"error"|an error event')  # failures in the form of the API
DEMO = ROOT / "runtime" / "demo" / "checkpoint"

# Imported by every Python process of the server: adds the offset in a file to the wall clock.
SHIFTED_CLOCK = """
import os, time
_file = os.open(os.environ["SIEGE_CLOCK"], os.O_RDONLY)
def _shifted(read, unit):
    return lambda: read() + type(read())(float(os.pread(_file, 40, 0)) * unit)
time.time, time.time_ns = _shifted(time.time, 1), _shifted(time.time_ns, 10**9)
"""


@dataclass(frozen=True)
class Fault:
    """A fault of the machine. The server has the same flags and kind of log with and without it."""

    name: str
    summary: str
    # Causes the fault in a loaded server, and returns after the server has recovered. None: it exists from the start.
    inject: Callable[[Server, Outcome], None] | None = None
    args: tuple[str, ...] = ()
    full: tuple[str, ...] = ()  # directories that have no free space; `cache` is the user's cache directory
    loses_requests: bool = False  # requests may end with an error while the server recovers
    converted: bool = False  # the checkpoint has no tokenizer.json, so that the server writes one to its cache
    piped: bool = False  # the server writes its log to a pipe


@dataclass
class Outcome:
    """Measurements of one server."""

    answers: list[str] = field(default_factory=list)  # to PROMPTS, before the load
    answers_after: list[str] = field(default_factory=list)
    requests: Counter[str] = field(default_factory=Counter)  # answered, error, broken
    broken: list[str] = field(default_factory=list)  # how requests ended without an answer or an error
    longest_seconds: float = 0.0  # of one request
    recovery_seconds: float | None = None
    health: dict[str, Any] = field(default_factory=dict)
    growth_mb: float = 0.0
    lines_per_second: int = 0
    notes: list[str] = field(default_factory=list)  # errors that the checks of a fault found


class Server(Besieged):
    """A server with the faults that exist from its start."""

    def __init__(self, directory: Path, fault: Fault, with_fault: bool) -> None:
        self._full = fault.full if with_fault else ()
        self._piped = fault.piped
        self.cache, self.clock = directory / "cache", directory / "clock"
        self.cache.mkdir()
        self.clock.write_text(f"{0.0:<40}")
        (directory / "hook").mkdir()
        (directory / "hook" / "sitecustomize.py").write_text(SHIFTED_CLOCK)
        model = without_tokenizer_json(DEMO, directory / "model") if fault.converted else DEMO
        self.keys_file = directory / "keys"
        super().__init__(directory, MODULE, ("--device", "cpu", "--model", str(model), *fault.args))

    def _wrapped(self, command: list[str], directory: Path) -> list[str]:
        if self._piped:
            os.mkfifo(directory / "pipe")
            script = 'cat "$0" & echo $! > "$0.reader"; exec "$@" > "$0" 2>&1'
            return ["sh", "-c", script, str(directory / "pipe"), *command]
        if not self._full:
            return command
        paths = [str(self.cache) if name == "cache" else name for name in self._full]
        steps = [f'mount -t tmpfs -o size=16k,mode=1777 full "{path}" && fill "{path}"' for path in paths]
        fill = 'fill() { dd if=/dev/zero of="$1/filler" bs=4k 2>/dev/null; test -s "$1/filler"; }'
        script = " && ".join([fill, *steps, 'exec "$@"'])
        return ["unshare", "--mount", *(["--map-root-user"] if os.getuid() else []), "sh", "-c", script, "sh", *command]

    def _environment(self, directory: Path) -> dict[str, str]:
        inherited = super()._environment(directory)
        paths = [str(directory / "hook"), inherited.get("PYTHONPATH", "")]
        return inherited | {
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "SIEGE_CLOCK": str(self.clock),
            "XDG_CACHE_HOME": str(self.cache),
        }

    def set_clock(self, offset: float) -> None:
        with self.clock.open("r+") as file:
            file.write(f"{offset:<40}")

    def rank(self) -> psutil.Process:
        found = [process for process in self._family() if "runtime.server.engine_process.rank" in process.cmdline()]
        if not found:
            raise SiegeError("the server has no rank process")
        return found[0]

    def check(self) -> psutil.Process | None:
        """Returns the process that checks grammars, if it runs."""
        name = "runtime.structured_output.sandbox_process"
        return next((process for process in self._family() if name in process.cmdline()), None)

    def reader(self) -> psutil.Process:
        """Returns the process that reads the log from the pipe."""
        return psutil.Process(int((self.keys_file.parent / "pipe.reader").read_text()))

    def largest(self) -> psutil.Process:
        return max(self._family(), key=_rss)

    def memory_mb(self) -> float:
        return sum(map(_rss, self._family())) / MB

    def wait_ready(self, lost: psutil.Process) -> float:
        """Waits until a process is gone and the server is ready again. Returns the seconds."""
        start = time.monotonic()
        while lost.is_running() and lost.status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.01)
        was_unready = False
        while time.monotonic() - start < 2 * READY_SECONDS:
            ready = self._ready()
            was_unready |= not ready
            if ready and (was_unready or time.monotonic() - start > 5):
                break
            time.sleep(0.02)
        return time.monotonic() - start


def _rss(process: psutil.Process) -> int:
    with contextlib.suppress(psutil.NoSuchProcess):
        return int(process.memory_info().rss)
    return 0


def kill_rank(server: Server, outcome: Outcome) -> None:
    rank = server.rank()
    rank.send_signal(signal.SIGKILL)
    outcome.recovery_seconds = server.wait_ready(rank)


@contextlib.contextmanager
def memory_limit(server: Server, limit_mb: float) -> Iterator[list[psutil.Process]]:
    """Kills the largest process of a server that exceeds a memory limit, as the kernel does. Yields what it killed."""
    killed: list[psutil.Process] = []
    closed = threading.Event()

    def watch() -> None:
        while not killed and not closed.wait(0.05):
            if server.memory_mb() > limit_mb:
                killed.append(server.largest())
                killed[0].send_signal(signal.SIGKILL)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield killed
    finally:
        closed.set()
        thread.join()


def limit_memory(server: Server, outcome: Outcome) -> None:
    """Sets a limit that attacks must not reach, then one that the server itself exceeds."""
    with memory_limit(server, server.memory_mb() + ALLOWANCE_MB) as killed:
        for name in ("choices", "long-prompts"):
            attack = ATTACKS[name]
            child = Child(attacker, attack.run.__module__, name, server.port, server.attackers_key, 5.0, 1.0, nice=19)
            child.ready()
            child.finish(90)
    if killed:
        outcome.notes.append(f"attacks used {ALLOWANCE_MB:.0f} MB of memory")
        server.wait_ready(killed[0])
    with memory_limit(server, server.memory_mb() - 1) as killed:
        while not killed:
            time.sleep(0.01)
        outcome.recovery_seconds = server.wait_ready(killed[0])


def jump_clock(server: Server, outcome: Outcome) -> None:
    for offset in JUMPS:
        server.set_clock(offset)
        time.sleep(JUMP_SECONDS)
        if offset == JUMPS[1]:
            _check_key_rotation(server, outcome)


def _check_key_rotation(server: Server, outcome: Outcome) -> None:
    new = "k" * 32
    server.keys_file.write_text(server.keys_file.read_text() + f"{new}\n")
    end = time.monotonic() + 30
    while time.monotonic() < end:
        if asyncio.run(_status(server.port, new)) == 200:
            return
        time.sleep(0.2)
    outcome.notes.append("a key that was added after the clock went back was not accepted within 30 s")


def kill_check(server: Server, outcome: Outcome) -> None:
    """Kills the process that checks grammars while it has one. The request is answered, and so is the next one."""

    async def asked(number: int) -> str | None:
        body = {"prompt": "a", "max_tokens": 8, "stream": False, "structured_outputs": {"regex": f"[a-c]{{{number}}}"}}
        async with clients.session(server.port, server.key, keep_alive=False) as client:
            return (await clients.post(client, "/v1/completions", body))[0]

    async def killed(number: int) -> list[str | None]:
        process = server.check()
        if process is None:
            return ["the process that checks grammars does not run"]
        process.suspend()
        request = asyncio.create_task(asked(number))
        await asyncio.sleep(1.0)
        process.kill()
        return [await request, await asked(number)]

    failures = [asyncio.run(asked(1)), *(failure for i in range(2, 5) for failure in asyncio.run(killed(i)))]
    outcome.notes += [f"with the check killed: {failure}" for failure in failures if failure is not None]


def pause_reader(server: Server, outcome: Outcome) -> None:
    """Stops the reader of the log until the pipe is full many times over. Nothing of the server waits for it."""

    async def fill() -> None:
        async with clients.session(server.port, server.key, keep_alive=True) as client:
            for _ in range(UNREAD_REQUESTS):
                async with client.post("/tokenize", json={"prompt": "a"}) as answer:
                    await answer.read()

    reader = server.reader()
    reader.suspend()
    try:
        asyncio.run(fill())
    finally:
        reader.resume()
    end = time.monotonic() + 30
    while "because the log was not read" not in server.log.read_text(errors="replace"):
        if time.monotonic() > end:
            outcome.notes.append("the log does not say that lines were dropped")
            return
        time.sleep(0.1)


async def _status(port: int, key: str) -> int:
    async with clients.session(port, key, keep_alive=False) as client, client.get("/v1/models") as answer:
        return answer.status


TWO_RANKS = ("--tensor-parallel-size", "2")
FAULTS = {
    fault.name: fault
    for fault in (
        Fault("killed-rank", "SIGKILL of a tensor parallel rank", kill_rank, TWO_RANKS, loses_requests=True),
        Fault("memory-limit", "SIGKILL of the largest process at a limit", inject=limit_memory, loses_requests=True),
        Fault("full-cache", "no space in the cache directory", full=("cache",), converted=True),
        Fault("full-shm", "no space in /dev/shm", args=TWO_RANKS, full=("/dev/shm",)),
        Fault("killed-check", "SIGKILL of the process that checks grammars, while it has one", inject=kill_check),
        Fault("unread-log", "nobody reads the log, a pipe, for a while", inject=pause_reader, piped=True),
        Fault("clock-jumps", "the wall clock jumps by days and years, forwards and back", inject=jump_clock),
    )
}


# -- load


def load(stopped: observers.Stopped, report: observers.Report, port: int, key: str) -> list[tuple[str, str, float]]:
    """Keeps CLIENTS requests in flight, every other one streamed. Returns the outcome of each request."""

    async def one(number: int, done: list[tuple[str, str, float]]) -> None:
        async with clients.session(port, key, keep_alive=number % 2 == 0) as client:
            while not stopped():
                body = {"prompt": PROMPTS[number % len(PROMPTS)], "max_tokens": 64, "ignore_eos": True}
                failure, seconds = await clients.post(client, "/v1/completions", body | {"stream": number % 3 == 0})
                how = "answered" if failure is None else "error" if ERROR.match(failure) else "broken"
                done.append((how, failure or "", seconds))
                if how != "answered":
                    await asyncio.sleep(0.5)

    async def all_of_them() -> list[tuple[str, str, float]]:
        done: list[tuple[str, str, float]] = []
        report("asking")
        await asyncio.gather(*(one(number, done) for number in range(CLIENTS)))
        return done

    return asyncio.run(all_of_them())


def answers_of(server: Server) -> list[str]:
    """Returns the greedy answers to PROMPTS."""

    async def asking() -> list[str]:
        found = []
        async with clients.session(server.port, server.key, keep_alive=False) as client:
            for prompt in PROMPTS:
                body = {"prompt": prompt, "max_tokens": 24, "temperature": 0}
                async with client.post("/v1/completions", json=body) as answer:
                    found.append((await answer.json())["choices"][0]["text"])
        return found

    return asyncio.run(asking())


# -- measurement


def measure(fault: Fault, with_fault: bool, seconds: float = SECONDS) -> Outcome:
    outcome = Outcome()
    with Server.started(fault, with_fault) as server:
        outcome.answers = answers_of(server)
        with children() as start:
            stand_in, loading = start(observers.stand_in), start(load, server.port, server.key)
            prober = start(observers.prober, server.port, stand_in.ready())
            loading.ready(), prober.ready()
            meter = Meter(server, verdict.GROWTH_MB * 100)
            before = meter.rss_mb()
            with meter:
                begun = time.monotonic()
                time.sleep(FIRST_SECONDS)
                if with_fault and fault.inject is not None:
                    fault.inject(server, outcome)
                time.sleep(max(seconds - (time.monotonic() - begun), FIRST_SECONDS))
                done, _ = loading.finish(ANSWER_SECONDS + 30)
                outcome.health, _ = prober.finish()
                outcome.growth_mb = meter.peak_mb - before
                outcome.lines_per_second = meter.max_lines
        outcome.requests = Counter(how for how, _, _ in done)
        outcome.broken = sorted({detail for how, detail, _ in done if how == "broken"})[:5]
        outcome.notes += sorted({f"error: {detail}" for how, detail, _ in done if how == "error"})[:3] * (
            not fault.loses_requests
        )
        outcome.longest_seconds = max((took for *_, took in done), default=0.0)
        outcome.answers_after = answers_of(server)
        conversions = server.log.read_text(errors="replace").count("converting the tokenizer of")
        if conversions != fault.converted:
            outcome.notes.append(f"the tokenizer was converted {conversions} times")
    return outcome


def missed(fault: Fault, control: Outcome, found: Outcome) -> list[str]:
    """Returns the bars that were missed."""
    health, bar = found.health["longest_seconds"], max(verdict.HEALTH_SECONDS, 2 * control.health["longest_seconds"])
    own = found.health["stand_in_longest_seconds"]
    recovered = found.recovery_seconds is not None and found.recovery_seconds <= READY_SECONDS
    bars = {
        f"requests ended without an answer or an error: {'; '.join(found.broken)}": bool(found.broken),
        f"{found.requests['error']} requests failed": bool(found.requests["error"]) and not fault.loses_requests,
        "no request was answered": not found.requests["answered"],
        f"without the fault, requests failed: {dict(control.requests)}": control.requests.keys() - {"answered"},
        f"a request took {found.longest_seconds:.0f} s": found.longest_seconds > ANSWER_SECONDS,
        f"{found.health['failed']} probes of /health failed": found.health["failed"],
        f"/health took up to {health:.3f} s (bar {bar:.3f}); a server that does nothing took {own:.3f} s": health > bar,
        f"/ready was 200 again after {found.recovery_seconds} s": fault.loses_requests and not recovered,
        "answers differ from those without the fault": not found.answers == found.answers_after == control.answers,
        f"the front end's memory grew by {found.growth_mb:.0f} MB": found.growth_mb >= verdict.GROWTH_MB,
        f"{found.lines_per_second} log lines in a second": found.lines_per_second > verdict.LINES_A_SECOND,
    }
    return [*found.notes, *(sentence for sentence, is_missed in bars.items() if is_missed)]


def row(fault: Fault, control: Outcome, found: Outcome) -> str:
    recovery = "" if found.recovery_seconds is None else f", ready again after {found.recovery_seconds:.1f} s"
    return (
        f"{fault.name} ({fault.summary}): {dict(found.requests)} requests (control {dict(control.requests)})"
        f"{recovery}; /health {found.health['longest_seconds'] * 1000:.0f} ms (control "
        f"{control.health['longest_seconds'] * 1000:.0f} ms), memory +{found.growth_mb:.0f} MB"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.siege.faults", description=__doc__)
    parser.add_argument("faults", nargs="*", metavar="FAULT", help=f"names (all without any): {', '.join(FAULTS)}")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of load (%(default)s)")
    parsed = parser.parse_args(arguments)
    if unknown := [name for name in parsed.faults if name not in FAULTS]:
        parser.error(f"unknown fault {', '.join(unknown)}; there are {', '.join(FAULTS)}")
    status = 0
    for fault in [FAULTS[name] for name in parsed.faults or FAULTS]:
        try:
            control, found = (measure(fault, with_fault, parsed.seconds) for with_fault in (False, True))
        except SiegeError as error:
            print(f"{fault.name}: not measured: {error}", flush=True)
            status = 1
            continue
        wrong = missed(fault, control, found)
        print(
            row(fault, control, found), "holds" if not wrong else "MISSED: " + "; ".join(wrong), sep="\n  ", flush=True
        )
        status |= bool(wrong)
    return status


if __name__ == "__main__":
    sys.exit(main())

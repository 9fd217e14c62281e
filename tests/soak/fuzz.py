"""Sends valid, invalid, aborted and slow requests to one server: ``python -m tests.soak.fuzz --requests 10000``.

The exit code is not 0 if a request is lost, hangs or gets a wrong answer, or if any request runs, waits or holds a page
at the end. It is not 0 either if the memory of a process (its anonymous PSS) grows in the second half: if it is at the
end 20 MB or more above its maximum in the first half. Caches and compiled code fill in the first half.
"""

import argparse
import asyncio
import collections
import contextlib
import json
import random
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import psutil

from tests.server.harness import ServerProcess
from tests.server.test_hostile import CASES
from tests.soak import kinds
from tests.wait import wait_until_async

BLOCK = 1000  # requests between two measurements of memory
MAX_GROWTH = 20 * 2**20  # bytes
STALL_SECONDS = 300.0  # a request hangs if it waits for this time without a step of the engine
# Limit of the engine's steps during one request; a request with more hangs. A completion takes up to 190 own steps. On
# a busy machine a step serves one of the four completions of `choices`, and `force_single_batch` needs separate steps.
MAX_STEPS = 4 * 190 * 8
TEXTS = [
    "Solve:", "12", "+", "30.", "count", "from", "three", "to", "nine,", "reverse", "the", "word", "bridge", "and",
    "spell", "it;", "what", "is", "äöü", "🙂", "<|mask|>",
]  # fmt: skip
DECODING: list[dict[str, Any]] = [
    {"mode": "speed"}, {"algorithm": "fixed", "steps": 4}, {"accept_threshold": 0.3}, {"remask_threshold": 0.2},
    {"algorithm": "factor", "suppress_eos": "confidence"},
    {"algorithm": "local_leap", "local_leap": {"anchor": 0.5}, "force_single_batch": True},
    {"algorithm": "credit", "confidence_metric": "margin"},
]  # fmt: skip


class Fault(Exception):
    """A request did not end as required."""


class Fuzzer:
    """Sends requests of all kinds to one server, and records their outcomes."""

    def __init__(self, url: str, seed: int) -> None:
        self.url = url
        parts = urlsplit(url)
        self.host, self.port = parts.hostname or "127.0.0.1", parts.port or 80
        self.random = random.Random(seed)
        self.client = httpx.AsyncClient(
            base_url=url, timeout=None, trust_env=False, limits=httpx.Limits(max_keepalive_connections=64)
        )
        self.steps = 0  # of the engine, at the last scrape
        self.outcomes: collections.Counter[str] = collections.Counter()
        self.faults: list[str] = []
        weighted: list[tuple[int, Callable[[], Coroutine[Any, Any, str]]]] = [
            (30, self.complete), (15, self.stream), (10, self.chat), (5, self.choices), (20, self.invalid),
            (12, self.aborted), (4, self.slow_reader), (4, self.slow_sender),
            (14, self.formed), (14, self.called), (6, self.with_logprobs),
        ]  # fmt: skip
        self.kinds = [kind for weight, kind in weighted for _ in range(weight)]

    # -- bodies

    def prompt(self) -> str:
        return " ".join(self.random.choices(TEXTS, k=self.random.randint(1, 40)))

    def valid(self) -> dict[str, Any]:
        r = self.random
        body: dict[str, Any] = {"prompt": self.prompt(), "max_tokens": r.choice([1, 7, 16, 33, 64])}
        if r.random() < 0.3:
            body |= {"temperature": r.choice([0.5, 1.0]), "seed": r.randrange(2**32), "top_p": r.choice([0.8, 1.0])}
        if r.random() < 0.3:
            body["stop"] = r.choice(["e", ["42", "\n"], "no such text"])
        if r.random() < 0.4:
            body["ignore_eos"] = True
        if r.random() < 0.4:
            body["decoding"] = r.choice(DECODING)
        if r.random() < 0.1:
            body["max_nfe"] = r.randint(1, 8)
        return body

    # -- kinds of requests; each method returns the name of the outcome or raises Fault

    async def complete(self) -> str:
        body = self.valid()
        answer = await self.client.post("/generate", json=body)
        self.expect(answer, 200)
        data = answer.json()
        if body.get("ignore_eos") and "stop" not in body and "max_nfe" not in body:
            self.require(len(data["token_ids"]) == body["max_tokens"], f"{len(data['token_ids'])} tokens of {body}")
        self.require(data["usage"]["completion_tokens"] == len(data["token_ids"]), "usage differs from the ids")
        return "plain"

    async def stream(self) -> str:
        body = {**self.valid(), "stream": True, "stream_mode": self.random.choice(["denoise", "block_append"])}
        answer = await self.client.post("/generate", json=body)
        self.expect(answer, 200)
        lines = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line.startswith("data: ")]
        self.require(lines[-1] == "[DONE]", "a stream without [DONE]")
        events = [json.loads(line) for line in lines[:-1]]
        self.require(events[-1]["event"] == "final", f"a stream that ends with {events[-1]}")
        self.require("".join(e["text"] for e in events[:-1]) == events[-1]["text"], "deltas are not the final text")
        return "stream"

    async def chat(self) -> str:
        body = self.valid()
        body["messages"] = [{"role": "user", "content": body.pop("prompt")}]
        self.expect(await self.client.post("/v1/chat/completions", json=body), 200)
        return "chat"

    async def choices(self) -> str:
        body = {**self.valid(), "prompt": [self.prompt(), self.prompt()], "n": 2}
        answer = await self.client.post("/v1/completions", json=body)
        self.expect(answer, 200)
        self.require(len(answer.json()["choices"]) == 4, "not every choice came")
        return "choices"

    async def promised(self, ask: kinds.Ask) -> str:
        """Sends a request and checks its answer. Sometimes streams it as well, which must give the same text."""
        route, body, check = ask
        answer = await self.client.post(route, json=body)
        self.expect(answer, 200)
        try:
            seen = kinds.check_complete(route, answer)
            check(seen)
        except (AssertionError, ValueError, KeyError) as error:
            raise Fault(f"{route} {json.dumps(body)}: {error}; {answer.text[:300]}") from None
        if self.random.random() < 0.4:
            stream = await self.client.post(route, json={**body, "stream": True})
            self.expect(stream, 200)
            try:
                pieces = kinds.streamed(route, stream)
                self.require(kinds.same(pieces, seen), f"{route} {json.dumps(body)}: {pieces}, whole {seen}")
            except (AssertionError, ValueError, KeyError) as error:
                raise Fault(f"{route} {json.dumps(body)}, streamed: {error!r}; {stream.text[-1500:]}") from None
        return f"{route} {'called' if seen['calls'] else 'text'}"

    async def formed(self) -> str:
        return await self.promised(kinds.formed(self.random, self.prompt()))

    async def called(self) -> str:
        return await self.promised(kinds.called(self.random, self.prompt()))

    async def with_logprobs(self) -> str:
        return await self.promised(kinds.with_logprobs(self.random, self.prompt()))

    async def invalid(self) -> str:
        refused = [case for case in CASES if 400 <= case[2] < 500 and len(str(case[1])) < 100_000]
        route, body, _, _ = self.random.choice(refused)
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        answer = await self.client.post(route, content=content)
        # values that are out of range for the test model may be valid for this one
        self.require(400 <= answer.status_code < 500 or answer.status_code == 200, f"{answer.status_code} for {route}")
        if answer.status_code != 200:
            self.require("message" in answer.json()["error"], "no error object")
        return "invalid"

    async def aborted(self) -> str:
        _, writer = await self.send_raw({**self.valid(), "max_tokens": 64, "stream": self.random.random() < 0.5})
        await asyncio.sleep(self.random.choice([0, 0.005, 0.05, 0.2]))
        writer.transport.abort()
        return "aborted"

    async def slow_reader(self) -> str:
        reader, writer = await self.send_raw({**self.valid(), "stream": True})
        data = b""
        while chunk := await reader.read(self.random.choice([64, 512, 4096])):
            data += chunk
            if data.endswith(b"0\r\n\r\n"):
                break
            await asyncio.sleep(self.random.random() / 50)
        writer.close()
        self.require(b"data: [DONE]" in data, "a slow reader did not get the end")
        return "slow reader"

    async def slow_sender(self) -> str:
        reader, writer = await asyncio.open_connection(self.host, self.port)
        data = self.raw(self.valid(), "Connection: close\r\n")
        start = data.index(b"\r\n\r\n") + 2
        for part in (data[:start], data[start : start + 7], data[start + 7 : start + 22], data[start + 22 :]):
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(self.random.random() / 10)
        answer = await reader.read()
        writer.close()
        self.require(answer.startswith(b"HTTP/1.1 200"), f"a slow sender got {answer[:80]!r}")
        return "slow sender"

    def raw(self, body: dict[str, Any], headers: str = "") -> bytes:
        data = json.dumps(body).encode()
        head = f"POST /generate HTTP/1.1\r\nHost: localhost\r\n{headers}Content-Length: {len(data)}\r\n\r\n"
        return head.encode() + data

    async def send_raw(self, body: dict[str, Any]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(self.host, self.port)
        writer.write(self.raw(body))
        return reader, writer

    # -- running

    def expect(self, answer: httpx.Response, status: int) -> None:
        self.require(answer.status_code == status, f"{answer.status_code}: {answer.text[:300]}")

    def require(self, holds: bool, fault: str) -> None:
        if not holds:
            raise Fault(fault)

    async def one(self) -> None:
        kind = self.random.choice(self.kinds)
        try:
            self.outcomes[await self.finished(kind(), STALL_SECONDS)] += 1
        except Exception as error:
            self.outcomes["fault"] += 1
            self.faults.append(f"{kind.__name__}: {type(error).__name__}: {error}")

    async def finished(self, work: Coroutine[Any, Any, str], seconds: float) -> str:
        """Returns the outcome of a request, however long a busy machine takes. Checks the engine every few seconds.

        Raises:
            Fault: The engine has made no step since the last check, or more than `MAX_STEPS` during the request.
        """
        task, began = asyncio.create_task(work), self.steps
        before = began
        try:
            while not (await asyncio.wait([task], timeout=seconds))[0]:
                now = self.steps
                self.require(now > before, f"hangs: no step of the engine in {seconds:g} s")
                self.require(now - began <= MAX_STEPS, f"hangs: more than {MAX_STEPS} steps of the engine")
                before = now
            return task.result()
        finally:
            task.cancel()

    async def metrics(self, *names: str) -> dict[str, float]:
        """Returns the values of metrics with these names, by name and labels."""
        lines = (await self.client.get("/metrics", timeout=STALL_SECONDS)).text.splitlines()
        samples = [line.split(" ") for line in lines if line.partition(" ")[0].partition("{")[0] in names]
        return {name: float(value) for name, value in samples}

    async def watch_steps(self) -> None:
        """Updates `steps` until it is canceled."""
        while True:
            self.steps = int(sum((await self.metrics("unmask_engine_steps_total")).values()))
            await asyncio.sleep(1)

    async def run(self, count: int, clients: int, end: float) -> int:
        """Sends `count` requests from `clients` closed loops, or fewer until `end`. Returns their number."""
        watcher = asyncio.create_task(self.watch_steps())
        left = count

        async def loop() -> None:
            nonlocal left
            while left > 0 and time.monotonic() < end:
                left -= 1
                await self.one()

        try:
            await asyncio.gather(*(loop() for _ in range(clients)))
        finally:
            watcher.cancel()
        return count - max(left, 0)


def pss(process: psutil.Process) -> int:
    """Returns the bytes of anonymous memory. The PSS of mapped files depends on other processes that map them."""
    lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss_Anon:"))


async def idle(fuzzer: Fuzzer) -> dict[str, float]:
    """Waits until no request runs or waits and no page is in use, at most `TIMEOUT`. Returns the last counts."""
    names = ("unmask_requests_running", "unmask_requests_waiting", "unmask_kv_pages_used")
    found: dict[str, float] = {}

    async def none() -> bool:
        nonlocal found
        found = await fuzzer.metrics(*names)
        return not any(found.values())

    with contextlib.suppress(TimeoutError):
        await wait_until_async(none)
    return found


async def fuzz(args: argparse.Namespace, url: str, processes: list[psutil.Process]) -> bool:
    fuzzer = Fuzzer(url, args.seed)
    started = time.monotonic()
    end = started + args.minutes * 60
    done = 0
    history: list[list[int]] = []  # bytes of each process after each block
    while done < args.requests and time.monotonic() < end:
        done += await fuzzer.run(min(BLOCK, args.requests - done), args.clients, end)
        history.append([pss(process) for process in processes])
        memory = ", ".join(f"{size / 2**20:.1f} MB" for size in history[-1])
        seconds = time.monotonic() - started
        print(f"{done} requests in {seconds:.0f} s, {len(fuzzer.faults)} faults; memory {memory}", flush=True)
    left = await idle(fuzzer)
    good = not fuzzer.faults and not any(left.values()) and done == args.requests
    print("outcomes:", json.dumps(fuzzer.outcomes, sort_keys=True))
    print("at the end:", json.dumps(left))
    if done < args.requests:
        print(f"FAULT: only {done} requests within {args.minutes:g} minutes")
    first_half = history[: len(history) // 2]
    for i, process in enumerate(processes):
        last = pss(process)
        kind = "backend" if "--command-addr" in process.cmdline() else "frontend"
        note, bad = "no growth measured", False
        if first_half:
            grown = last - max(sizes[i] for sizes in first_half)
            note, bad = f"{grown / 2**20:+.1f} MB in the second half", grown >= MAX_GROWTH
        good = good and not bad
        print(f"{'FAULT: ' if bad else ''}{kind}: {last / 2**20:.0f} MB of its own, {note}")
    for fault in fuzzer.faults[:20]:
        print("FAULT:", fault)
    await fuzzer.client.aclose()
    print("passed" if good else "FAILED")
    return good


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak.fuzz", description=__doc__)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--clients", type=int, default=32, help="closed loops")
    parser.add_argument("--minutes", type=float, default=60, help="most time it may take")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model", help="checkpoint of the server to start; the demo without it")
    parser.add_argument("--url", help="a running server on this host, instead of one of its own")
    args = parser.parse_args()
    if args.url is not None:
        if urlsplit(args.url).hostname not in ("127.0.0.1", "localhost", "::1"):
            parser.error("--url: only a server on this host")
        return 0 if asyncio.run(fuzz(args, args.url, _of_url(args.url))) else 1
    server = ServerProcess(*(["--model", args.model] if args.model else []))
    try:
        server.until_ready()
        processes = [psutil.Process(server.process.pid), *server.backends()]
        return 0 if asyncio.run(fuzz(args, server.url, processes)) else 1
    finally:
        server.stop()


def _of_url(url: str) -> list[psutil.Process]:
    """Returns the processes of the server at this URL that are visible to this user."""
    port = urlsplit(url).port
    owners = {c.pid for c in psutil.net_connections("tcp") if c.status == "LISTEN" and c.laddr.port == port and c.pid}
    found = [psutil.Process(pid) for pid in owners]
    return [*found, *(child for p in found for child in p.children())]


if __name__ == "__main__":
    sys.exit(main())

"""The innocent clients, in separate processes. Every other request of theirs is a long one."""

from __future__ import annotations

import asyncio
import json
import random
import secrets
import statistics
import time
from dataclasses import dataclass
from typing import Any

import aiohttp

from tests.siege.observers import Report, Stopped

GIVE_UP = 60.0  # seconds a client waits for an answer
ANSWER = 32  # tokens
CHAT = "/v1/chat/completions"
PROMPTS = ("Solve: 12 + 30.", "Sort: 5 3 9 1.", "Spell: lantern.", "Count from 3 to 9.")
LONG_WORD = " backwards"  # the longest word that is a single token of the demo
LONG_BYTES = 12 * 2**10  # bytes of a long body, more than is parsed, rendered and encoded at once
NOTE = 500  # characters


@dataclass(frozen=True)
class Usual:
    """Seconds per request on an idle server, and the longest text that fits into its context."""

    short: float  # seconds
    long: float
    text: str


@dataclass(frozen=True)
class Kind:
    """What innocents ask for: with `schema` a new JSON schema in each short chat; a model, "" for the base model."""

    schema: bool = False
    model: str = ""


PLAIN = Kind()


@dataclass(frozen=True)
class Asked:
    failure: str | None
    seconds: float
    usual: float

    @property
    def over(self) -> float:
        return self.seconds - self.usual


def chat_body(number: int, prompt: str, text: str, streamed: bool, kind: Kind = PLAIN) -> dict[str, Any]:
    """Returns a short chat, or, for odd numbers, one of about 12 KiB: the longest text, and notes for the rest."""
    messages = [{"role": "user", "content": prompt}]
    body: dict[str, Any] = {"messages": messages, "max_tokens": ANSWER, "stream": streamed}
    if kind.model:
        body["model"] = kind.model
    if kind.schema and not number % 2:
        properties = {f"field_{secrets.token_hex(4)}": {"type": "string", "description": "text"} for _ in range(24)}
        described = {"name": "new", "schema": {"type": "object", "properties": properties}}
        body["response_format"] = {"type": "json_schema", "json_schema": described}
    if number % 2:
        messages.insert(0, {"role": "system", "content": text})
        body["decoding"] = {"accept_threshold": 0.01}  # one step per block, to measure the server and not the model
        notes = max(LONG_BYTES - len(json.dumps(body)), 0) // NOTE
        body["metadata"] = {f"note{i}": "n" * NOTE for i in range(notes)}
    return body


async def post(client: aiohttp.ClientSession, path: str, body: dict[str, Any]) -> tuple[str | None, float]:
    """Sends a request. Returns its failure, if any, and its seconds."""
    end = "[DONE]" if body["stream"] else '"finish_reason"'
    failure = None
    start = time.monotonic()
    try:
        async with client.post(path, json=body) as answer:
            text = await answer.text()
            if answer.status != 200:
                failure = f"{answer.status}: {text[:120]}"
            elif '"error"' in text:
                failure = f"an error event: {text[-200:]!r}"
            elif end not in text:
                failure = f"an answer without its end: {text[-120:]!r}"
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        failure = f"{type(error).__name__}: {error}"
    return failure, time.monotonic() - start


async def ask(
    client: aiohttp.ClientSession, number: int, prompt: str, usual: Usual, streamed: bool, kind: Kind = PLAIN
) -> Asked:
    failure, seconds = await post(client, CHAT, chat_body(number, prompt, usual.text, streamed, kind))
    return Asked(failure, seconds, usual.long if number % 2 else usual.short)


def session(port: int, key: str, keep_alive: bool) -> aiohttp.ClientSession:
    connector = aiohttp.TCPConnector(force_close=not keep_alive, limit=0)
    return aiohttp.ClientSession(
        f"http://127.0.0.1:{port}",
        connector=connector,
        headers={"Authorization": f"Bearer {key}"},
        timeout=aiohttp.ClientTimeout(total=GIVE_UP),
    )


async def longest_text(client: aiohttp.ClientSession) -> str:
    """Returns the longest text of a long body that fits into the model's length with a prompt and its answer."""
    repetitions = LONG_BYTES // len(LONG_WORD)
    while True:
        body = chat_body(1, PROMPTS[0], LONG_WORD * repetitions, False)
        async with client.post("/tokenize", json={"messages": body["messages"]}) as answer:
            found = await answer.json()
            if answer.status != 200:
                raise RuntimeError(f"the idle server did not count a chat's tokens: {found}")
        over = found["count"] + 2 * ANSWER - found["max_model_len"]  # twice, because prompts differ by a few tokens
        if over <= 0 or repetitions == 1:
            return LONG_WORD * repetitions
        tokens_a_word = found["count"] / repetitions
        repetitions = max(repetitions - int(over / tokens_a_word) - 1, 1)


def usual(stopped: Stopped, report: Report, port: int, key: str, times: int, kind: Kind = PLAIN) -> Usual:
    """Returns the median seconds of a few sequential requests, short and long ones."""

    async def asking() -> Usual:
        taken: tuple[list[float], list[float]] = ([], [])
        async with session(port, key, keep_alive=False) as client:
            text = await longest_text(client)
            for i in range(times):
                failure, seconds = await post(
                    client, CHAT, chat_body(i, PROMPTS[i // 2 % len(PROMPTS)], text, False, kind)
                )
                if failure is not None:
                    raise RuntimeError(f"the idle server failed a good request: {failure}")
                taken[i % 2].append(seconds)
        return Usual(statistics.median(taken[0]), statistics.median(taken[1]), text)

    return asyncio.run(asking())


def innocent(stopped: Stopped, report: Report, port: int, key: str, usual: Usual, kind: Kind = PLAIN) -> dict[str, Any]:
    """Sends one request per second, each on a new connection, whether or not the previous one has ended."""

    async def asking() -> dict[str, Any]:
        tasks: list[asyncio.Task[Asked]] = []
        async with session(port, key, keep_alive=False) as client:
            report("asking")
            following = time.monotonic()
            while not stopped():
                if time.monotonic() >= following:
                    following += 1
                    number = len(tasks)
                    prompt = PROMPTS[number // 2 % len(PROMPTS)]
                    tasks.append(asyncio.create_task(ask(client, number, prompt, usual, False, kind)))
                await asyncio.sleep(0.05)
            return tally(await asyncio.gather(*tasks))

    return asyncio.run(asking())


def good_clients(
    stopped: Stopped, report: Report, port: int, key: str, usual: Usual, count: int, think: float
) -> dict[str, Any]:
    """Runs `count` clients that pause between requests. Half keep their connection, every third one streams."""

    async def one(number: int, done: list[Asked]) -> None:
        rng = random.Random(number)
        async with session(port, key, keep_alive=number % 2 == 0) as client:
            await asyncio.sleep(rng.uniform(0, think))
            asked = number // 2  # so that both kinds of connections begin with both kinds of requests
            while not stopped():
                done.append(await ask(client, asked, rng.choice(PROMPTS), usual, streamed=number % 3 == 0))
                asked += 1
                end = time.monotonic() + rng.uniform(0.5, 1.5) * think
                while not stopped() and time.monotonic() < end:
                    await asyncio.sleep(0.2)

    async def all_of_them() -> dict[str, Any]:
        done: list[Asked] = []
        report("asking")
        await asyncio.gather(*(one(i, done) for i in range(count)))
        return tally(done)

    return asyncio.run(all_of_them())


def tally(done: list[Asked]) -> dict[str, Any]:
    failures = [asked.failure for asked in done if asked.failure is not None]
    times = [asked.seconds / asked.usual for asked in done if asked.failure is None and asked.usual]
    return {
        "requests": len(done),
        "failed": len(failures),
        "turned_away": sum(failure.startswith("503: ") for failure in failures),
        "failures": sorted(set(failures))[:5],
        "median_times_usual": round(statistics.median(times), 2) if times else None,
        "longest_seconds": round(max((asked.seconds for asked in done), default=0.0), 3),
        "most_over_usual_seconds": round(max((asked.over for asked in done), default=0.0), 3),
    }

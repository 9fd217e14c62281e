"""Tests of the limit of host memory that adapters take which requests load: a client must not fill the memory."""

from __future__ import annotations

import itertools
import shutil
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from runtime import LLM
from runtime.config import EngineConfig, ServerConfig
from runtime.server.engine_client import adapter_registry
from runtime.server.engine_client.adapter_registry import max_route_bytes
from runtime.server.engine_client.ipc_protocol import CallResult, LoadAdapter
from runtime.server.engine_process.background_work import AdapterWorker
from tests.golden import GOLDEN
from tests.lora.samples import random_adapter
from tests.wait import TIMEOUT, wait_until

BASE = GOLDEN / "llada2_tiny"
ATTENTION = r".*(query_key_value|dense)"


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    directory = tmp_path_factory.mktemp("adapters")
    return [str(random_adapter(directory / f"p{n}", BASE, ATTENTION, n)) for n in range(10)]


class Loads:
    """An adapter worker of an engine, and the calls that it executes as the loop of a backend does."""

    def __init__(self, llm: LLM) -> None:
        self.llm = llm
        self.results: list[CallResult] = []
        self.worker = AdapterWorker(llm.engine, self.results.append, lambda spec: None)
        self.most_bytes = 0  # that the adapters of requests have taken at any time
        reserve = self.worker.memory.reserve

        def watched(*arguments: int) -> None:
            reserve(*arguments)
            memory = self.worker.memory
            self.most_bytes = max(self.most_bytes, memory.held_bytes + sum(memory._reserved.values()))

        self.worker.memory.reserve = watched  # type: ignore[method-assign]

    def load(self, *calls: LoadAdapter) -> list[CallResult]:
        """Loads adapters, all at once. Returns the results in the order of the calls."""
        self.results.clear()
        for number, call in enumerate(calls):
            self.worker.load(number, call)
        self.finish()
        return sorted(self.results, key=lambda result: result.number)

    def unload(self, *names: str) -> None:
        for number, name in enumerate(names):
            self.worker.unload(number, name)
        self.finish()

    def finish(self) -> None:
        def is_done() -> bool:
            self.worker.poll()
            return not self.worker.pending

        wait_until(is_done)

    @property
    def held(self) -> int:
        return self.worker.memory.held_bytes


@pytest.fixture
def loads(paths: Sequence[str]) -> Iterator[Callable[..., Loads]]:
    engines: list[LLM] = []

    def make(**flags: object) -> Loads:
        engines.append(LLM(str(BASE), device="cpu", skip_tokenizer=True, dtype="bfloat16", max_loras=2, **flags))
        return Loads(engines[-1])

    yield make
    for engine in engines:
        engine.close()


def by_request(name: str, path: str, max_bytes: int | None = sys.maxsize) -> LoadAdapter:
    return LoadAdapter(name, path, by_request=True, max_bytes=max_bytes)


def size_of(one: Loads, path: str) -> int:
    """Returns the bytes that an adapter takes once it is loaded, half of what it takes in float32."""
    one.load(by_request("size", path))
    size = one.held
    one.unload("size")
    assert (size > 0, one.held) == (True, 0)
    return size


def test_loads_at_once_do_not_exceed_the_limit(loads: Callable[..., Loads], paths: Sequence[str]) -> None:
    one = loads()
    size = size_of(one, paths[0])
    limit = 5 * size
    one.most_bytes = 0
    results = one.load(*(by_request(f"n{n}", path, limit) for n, path in enumerate(paths)))
    assert {(result.status, result.error is None) for result in results} == {(400, True), (429, False)}
    refusal = next(result.error for result in results if result.status == 429)
    assert "--lora-routes-memory-gb" in refusal
    assert "unload one" in refusal
    for n, path in enumerate(paths):
        one.load(by_request(f"m{n}", path, limit))
    assert one.held == one.llm.engine.stats().adapter_bytes == 4 * size  # reading a fifth would take twice its size
    assert one.most_bytes == limit
    one.unload(*one.llm.engine.lora_manager.available)
    assert one.held == 0
    assert one.load(by_request("again", paths[0], limit)) == [CallResult(0)]


def test_an_adapter_above_the_limit_is_refused_for_good(loads: Callable[..., Loads], paths: Sequence[str]) -> None:
    one = loads()
    (result,) = one.load(by_request("x", paths[0], 2 * size_of(one, paths[0]) - 1))
    assert result.status == 400
    assert result.error.startswith("lora_path: reading the adapter takes ")
    assert "or load the adapter with --lora or --lora-config" in result.error
    assert one.worker.memory._reserved == {}


def test_equal_content_counts_once(loads: Callable[..., Loads], paths: Sequence[str], tmp_path: Path) -> None:
    one = loads()
    size = size_of(one, paths[0])
    copy = str(shutil.copytree(paths[0], tmp_path / "copy"))
    one.load(*(by_request(name, paths[0]) for name in "abc"), by_request("d", copy))
    assert one.held == size
    one.unload("a", "b", "d")
    assert one.held == size
    one.unload("c")
    assert one.held == 0


def test_adapters_of_the_owner_do_not_count(loads: Callable[..., Loads], paths: Sequence[str]) -> None:
    one = loads(lora=[f"flag={paths[0]}"])
    assert one.load(LoadAdapter("listed", paths[1]), by_request("a", paths[0]), by_request("flag", paths[0])) == [
        CallResult(0), CallResult(1), CallResult(2),
    ]  # fmt: skip
    assert one.held == 0  # "a" shares the memory of "flag"
    one.unload("flag")
    size = one.held
    assert size == one.llm.engine.lora_manager.host_bytes(["a"]) > 0
    one.load(LoadAdapter("flag", paths[0]))
    assert one.held == 0
    one.load(by_request("b", paths[2], None))
    assert one.held == size


def test_reloads_take_no_more_memory_than_the_first_loads(loads: Callable[..., Loads], paths: Sequence[str]) -> None:
    """A backend that restarts reads all adapters again: at once, these would take twice the limit."""
    one = loads()
    limit = 5 * size_of(one, paths[0])
    one.most_bytes = 0
    again = [LoadAdapter(f"n{n}", path, by_request=True, reload=True) for n, path in enumerate(paths[:4])]
    results = one.load(LoadAdapter("listed", paths[8], reload=True), *again, by_request("new", paths[9], limit))
    assert [result.error is None for result in results] == [True] * 5 + [False]
    assert results[-1].status == 429  # it waits, and gets none of the memory of the others
    assert one.most_bytes == limit
    assert one.worker.memory.names == {call.name for call in again}


def test_an_adapter_that_is_loaded_again_needs_no_memory(
    loads: Callable[..., Loads], paths: Sequence[str], tmp_path: Path
) -> None:
    one = loads(lora=[f"flag={paths[1]}"])
    limit = 2 * size_of(one, paths[0])
    assert one.load(by_request("a", paths[0], limit)) == [CallResult(0)]
    one.most_bytes = 0
    again = one.load(by_request("a", paths[0], limit), by_request("flag", paths[1], limit))
    assert again == [CallResult(0), CallResult(1)]
    (other,) = one.load(by_request("a", paths[2], limit))
    assert "is loaded with other content" in other.error
    large = random_adapter(tmp_path / "large", BASE, ATTENTION, 0, rank=16)
    config = large / "adapter_config.json"
    config.write_text(config.read_text().replace('"r": 16', '"r": 4'))
    (refused,) = one.load(by_request("a", str(large), limit))
    assert "not [4, " in str(refused.error)  # before it is read
    assert (one.most_bytes, one.held) == (0, limit // 2)


def test_two_loads_of_one_name_are_both_answered(loads: Callable[..., Loads], paths: Sequence[str]) -> None:
    """A client may load an adapter that a restarted backend is reading."""
    one, second, waiting = loads(), threading.Event(), []
    manager = one.llm.engine.lora_manager
    read, numbers = manager.read, itertools.count()

    def delayed(*arguments: Any, **options: Any) -> Any:
        if next(numbers):
            assert second.wait(TIMEOUT)
        return read(*arguments, **options)

    manager.read = delayed
    one.worker.add = waiting.append
    for number in range(2):
        one.worker.load(number, by_request("a", paths[0]))
    assert one.worker.defer(cast(Any, SimpleNamespace(adapter="a", id="kept")))
    assert one.worker.defer(cast(Any, SimpleNamespace(adapter="a", id="aborted")))
    assert one.worker.abort("aborted")
    assert not one.worker.abort("aborted")
    wait_until(lambda: one.worker.poll() or one.results)  # type: ignore[func-returns-value]
    assert (one.worker.pending, waiting) == (True, [])
    second.set()
    one.finish()
    assert sorted(result.number for result in one.results) == [0, 1]
    assert len(waiting) == 1
    assert one.worker.memory._reserved == {}


def test_the_limit_is_a_part_of_the_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(adapter_registry, "CGROUP_MEMORY_LIMIT", tmp_path / "memory.max")

    def limit(engine: EngineConfig | None = None, **flags: object) -> int:
        return max_route_bytes(ServerConfig(engine=engine or EngineConfig(), lora_routes=True, **flags))

    machine = limit()
    assert machine > 0
    for text, expected in (("max\n", machine), ("8000000\n", 1_000_000)):
        (tmp_path / "memory.max").write_text(text)
        assert limit() == expected
    assert limit(EngineConfig(tensor_parallel_size=2), data_parallel_size=2) == 250_000
    assert limit(lora_routes_memory_gb=0.5) == 500_000_000

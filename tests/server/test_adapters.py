"""Tests of LoRA adapters of a running server: choice by `model`, loading and unloading while it serves, failures."""

from __future__ import annotations

import asyncio
import gc
import json
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import numpy as np
import pytest
from safetensors.numpy import save_file

from runtime.config import EngineConfig, ServerConfig
from runtime.errors import ConfigError, RequestError
from runtime.server.engine_client.adapter_registry import (
    MAX_ROUTE_ADAPTERS,
    MAX_ROUTE_LOADS,
    LocalAdapterRegistry,
    lora_config_stamp,
    read_lora_config,
)
from runtime.server.engine_client.ipc_protocol import CallResult, LoadAdapter
from tests.on_loop import on_loop
from tests.server.checkpoint import CONFIG
from tests.server.harness import ServerProcess, serving
from tests.server.test_frontends import clients
from tests.wait import TIMEOUT, wait_until, wait_until_async

pytestmark = pytest.mark.processes

HIDDEN = CONFIG["hidden_size"]
QKV = (CONFIG["num_attention_heads"] + 2 * CONFIG["num_key_value_heads"]) * CONFIG["head_dim"]


def write_adapter(directory: Path, seed: int, rank: int = 2) -> Path:
    """Writes an adapter of queries, keys and values that is strong enough to change the answers."""
    directory.mkdir(parents=True, exist_ok=True)
    random, tensors = np.random.default_rng(seed), {}
    for layer in range(CONFIG["num_hidden_layers"]):
        name = f"base_model.model.model.layers.{layer}.attention.query_key_value"
        for half, shape in (("A", (rank, HIDDEN)), ("B", (QKV, rank))):
            tensors[f"{name}.lora_{half}.weight"] = random.standard_normal(shape).astype(np.float32)
    save_file(tensors, directory / "adapter_model.safetensors")
    adapter_config = {"peft_type": "LORA", "r": rank, "lora_alpha": 4, "target_modules": ["query_key_value"]}
    (directory / "adapter_config.json").write_text(json.dumps(adapter_config))
    return directory


@pytest.fixture(scope="module")
def adapter_dirs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("adapters")
    for n in range(6):
        write_adapter(root / f"p{n}", n)
    return root


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("config")


@pytest.fixture(scope="module")
def server(checkpoint: Path, adapter_dirs: Path, config: Path) -> Iterator[ServerProcess]:
    (config / "fromfile").write_text(f"{adapter_dirs / 'p2'}\n")
    (config / "broken").write_text("/nowhere")
    flags = ["--lora", f"one={adapter_dirs / 'p0'}", "--lora", f"two={adapter_dirs / 'p1'}", "--max-loras", "2"]
    flags += ["--lora-config", str(config), "--lora-routes", "--lora-routes-memory-gb", "0.001"]
    with serving("--model", str(checkpoint), "--served-model-name", "base", *flags) as started:
        yield started.until_ready()


def ask(client: httpx.Client, model: str, text: str = "tell me more", tokens: int = 24) -> str:
    body = {"model": model, "prompt": text, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
    answer = client.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    assert answer.json()["model"] == model
    return str(answer.json()["choices"][0]["text"])


def names(client: httpx.Client) -> set[str]:
    return {model["id"] for model in client.get("/v1/models").json()["data"]}


def change(client: httpx.Client, what: str, **body: Any) -> httpx.Response:
    return client.post(f"/v1/{what}_lora_adapter", json=body)


def test_adapters_are_listed_and_chosen_by_model(server: ServerProcess, adapter_dirs: Path) -> None:
    with server.client() as client:
        data = {model["id"]: model for model in client.get("/v1/models").json()["data"]}
        assert data.keys() == {"base", "one", "two", "fromfile"}
        assert data["one"]["parent"] == "base"
        assert data["one"]["root"] == str(adapter_dirs / "p0")
        assert client.get("/v1/models/two").json()["id"] == "two"
        answers = {name: ask(client, name) for name in data}
        assert len(set(answers.values())) == 4
        assert {name: ask(client, name) for name in data} == answers
        chat = {"model": "one", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 8}
        assert client.post("/v1/chat/completions", json=chat).json()["model"] == "one"
        assert client.post("/generate", json={"prompt": "hi", "model": "two", "max_tokens": 8}).status_code == 200


def test_an_unknown_adapter_is_404_with_the_available_models(server: ServerProcess) -> None:
    with server.client() as client:
        answer = client.post("/v1/completions", json={"model": "nobody", "prompt": "x"})
        assert answer.status_code == 404
        error = answer.json()["error"]
        assert error["code"] == "model_not_found"
        assert "available: base, fromfile, one, two" in error["message"]


def test_the_config_file_is_followed_and_failures_are_reported(
    server: ServerProcess, config: Path, adapter_dirs: Path
) -> None:
    with server.client() as client:
        server.until(lambda: client.get("/startup").json()["adapters"]["broken"]["state"] == "failed")
        server.until(lambda: client.get("/startup").json()["adapters"]["fromfile"]["state"] == "ready")
        adapters = client.get("/startup").json()["adapters"]
        assert adapters["fromfile"] == {"state": "ready", "uri": str(adapter_dirs / "p2")}
        assert (adapters["broken"]["state"], adapters["broken"]["uri"]) == ("failed", "/nowhere")
        assert "'/nowhere' is not a directory" in adapters["broken"]["message"]
        before = ask(client, "fromfile")
        (config / "fromfile").write_text(str(adapter_dirs / "p3"))
        (config / "broken").unlink()
        (config / "base").write_text(str(adapter_dirs / "p3"))
        wait_until(lambda: "broken" not in client.get("/startup").json()["adapters"])
        wait_until(lambda: "fromfile" in names(client) and ask(client, "fromfile") != before)
        wait_until(lambda: "base" in client.get("/startup").json()["adapters"])
        assert "is the name of the model" in client.get("/startup").json()["adapters"]["base"]["message"]
        (config / "base").unlink()
        wait_until(lambda: "base" not in client.get("/startup").json()["adapters"])
        wait_until(lambda: names(client) == {"base", "one", "two", "fromfile"})


def registry_of(ready: list[int], call: Any) -> LocalAdapterRegistry:
    """Returns a registry over backends that answer a load with `call`."""

    def require_ready() -> list[int]:
        if not ready:
            raise RequestError("no engine process is ready", status=503)
        return list(ready)

    supervisor = SimpleNamespace(ready=ready, require_ready=require_ready, call=call)
    return LocalAdapterRegistry(ServerConfig(engine=EngineConfig(model="demo://")), cast(Any, supervisor))


@on_loop
async def test_a_failed_load_leaves_nothing_of_its_name() -> None:
    """Checks that failed loads keep no state per name, because clients choose the names."""

    async def call(replica: object, message: object) -> CallResult:
        return CallResult(0, error="no adapter")

    registry = registry_of([0], call)
    loads = (registry.load(f"name{i % 50}", "/adapters", by="route") for i in range(100))
    results = await asyncio.gather(*loads, return_exceptions=True)
    assert all(isinstance(result, RequestError) and result.message == "no adapter" for result in results)
    assert not registry.entries
    del results  # the tracebacks of the errors refer to the frames
    gc.collect()
    assert not registry._locks


@pytest.mark.parametrize(("ready", "message"), [([], "no engine process is ready"), ([0], "no adapter")])
@on_loop
async def test_a_load_without_a_backend_leaves_no_entry(ready: list[int], message: str) -> None:
    """Checks a load while the last backend exits. An entry in the state "loading" would never be loaded again."""
    ready = list(ready)

    async def call(replica: int, command: object) -> CallResult | None:
        ready.clear()
        return CallResult(0, error="no adapter")

    registry = registry_of(ready, call)
    with pytest.raises(RequestError, match=message):
        await registry.load("name", "/adapters", by="route")
    assert not registry.entries


@on_loop
async def test_loads_by_requests_are_limited() -> None:
    running = peak = 0
    proceed = asyncio.Event()

    async def call(replica: object, message: object) -> CallResult:
        nonlocal running, peak
        running += 1
        peak = max(peak, running)
        await proceed.wait()
        running -= 1
        return CallResult(0)

    registry = registry_of([0], call)
    loads = [registry.load(f"name{i}", "/adapters", by="route") for i in range(MAX_ROUTE_ADAPTERS + 3)]
    tasks = [asyncio.create_task(load) for load in loads]
    await wait_until_async(lambda: running == MAX_ROUTE_LOADS)
    proceed.set()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    refused = [result for result in results if isinstance(result, RequestError)]
    assert peak == MAX_ROUTE_LOADS
    assert [(error.status, error.code) for error in refused] == [(429, "too_many_adapters")] * 3
    await registry.load("listed", "/adapters", by="config")  # the file is not limited by them
    await registry.load("name0", "/adapters", by="route")  # it is loaded already
    await registry.unload("name0")
    await registry.load("another", "/adapters", by="route")
    assert len(registry.available) == MAX_ROUTE_ADAPTERS + 1


@on_loop
async def test_every_replica_loads_an_adapter() -> None:
    called: list[tuple[int, str]] = []

    async def call(replica: int, command: Any) -> CallResult | None:
        called.append((replica, command.name))
        return CallResult(0)

    registry = registry_of([0, 1], call)
    await registry.load("name", "/adapters", by="route")
    assert (sorted(called), registry.entries["name"].state) == ([(0, "name"), (1, "name")], "ready")


@on_loop
async def test_a_backend_that_restarts_reloads_in_the_order_of_the_loads() -> None:
    """The order keeps the backend within the limit of memory. A load in progress comes last, and is limited."""
    calls: list[tuple[int, LoadAdapter]] = []
    proceed = asyncio.Event()

    async def answer(name: str) -> CallResult:
        if name == "slow":
            await proceed.wait()
        return CallResult(0)

    def call(replica: int, message: Any) -> asyncio.Task[CallResult]:
        calls.append((replica, message))
        return asyncio.create_task(answer(message.name))

    registry = registry_of([0], call)
    slow = asyncio.create_task(registry.load("slow", "/s", by="route"))
    await wait_until_async(lambda: len(calls) == 1)
    await registry.load("listed", "/l", by="config")
    await registry.load("asked", "/a", by="route")
    calls.clear()
    registry.on_ready(1)
    limit = registry._max_route_bytes
    assert calls == [
        (1, LoadAdapter("listed", "/l", reload=True)),
        (1, LoadAdapter("asked", "/a", by_request=True, reload=True)),
        (1, LoadAdapter("slow", "/s", by_request=True, max_bytes=limit)),
    ]
    proceed.set()
    await slow


def test_clients_load_and_unload_adapters(server: ServerProcess, adapter_dirs: Path, tmp_path: Path) -> None:
    with server.client() as client:
        for _ in range(2):  # loading the same adapter again changes nothing
            assert change(client, "load", lora_name="more", lora_path=str(adapter_dirs / "p4")).status_code == 200
        first = ask(client, "more")
        large = write_adapter(tmp_path / "large", 1, 4000)
        broken = shutil.copytree(adapter_dirs / "p5", tmp_path / "broken")
        save_file({"x": np.zeros(2, np.float32)}, broken / "adapter_model.safetensors")
        for body, reason in (
            ({"lora_name": "more", "lora_path": str(adapter_dirs / "p5")}, "loaded with other content"),
            ({"lora_name": "base", "lora_path": str(adapter_dirs / "p5")}, "is the name of the model"),
            ({"lora_name": "", "lora_path": str(adapter_dirs / "p5")}, "not the name of an adapter"),
            ({"lora_name": "new", "lora_path": "/nowhere"}, "is not a directory"),
            ({"lora_name": "new", "lora_path": ""}, "'' is not a directory"),
            ({"lora_name": "new", "lora_path": str(large)}, "--lora-routes-memory-gb allows 0.001 GB"),
            ({"lora_name": "new", "lora_path": str(broken)}, "tensor 'x' is not half"),
            ({"lora_name": "new", "lora_path": str(write_adapter(tmp_path / "r", 1, 17))}, "more than --max-lora-rank"),
            ({"lora_name": "new", "lora_path": "/" + "a/" * 3000}, "lora_path: String should have at most 4096"),
            ({"lora_name": "new"}, "lora_path"),
        ):
            answer = change(client, "load", **body)
            assert answer.status_code == 400
            assert reason in answer.json()["error"]["message"]
            assert names(client) == {"base", "one", "two", "fromfile", "more"}
        assert ask(client, "more") == first
        for _ in range(2):
            assert change(client, "unload", lora_name="more").status_code == 200
        assert "more" not in names(client)
        answer = change(client, "unload", lora_name="base")
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "lora_name"
        assert "base" in names(client)
        assert client.post("/v1/completions", json={"model": "more", "prompt": "x"}).status_code == 404
        assert change(client, "load", lora_name="more", lora_path=str(adapter_dirs / "p5")).status_code == 200
        assert ask(client, "more") != first
        assert change(client, "unload", lora_name="more").status_code == 200


@pytest.mark.matrix
def test_loading_and_unloading_under_load_fails_no_other_request(server: ServerProcess, adapter_dirs: Path) -> None:
    """Checks that requests of the base model and of other adapters run on, and that an unload waits for its own."""
    done, running = threading.Event(), 'unmask_lora_requests_running{lora="guest"}'

    def load(name: str) -> bool:
        with server.client() as client:
            expected = ask(client, name)
            while not done.is_set():
                if ask(client, name) != expected:
                    return False
        return True

    with ThreadPoolExecutor(8) as pool, server.client() as client:
        loads = [pool.submit(load, name) for name in ("base", "one", "two", "fromfile")]
        for n in range(4):
            path = str(adapter_dirs / f"p{3 + n % 3}")
            assert change(client, "load", lora_name="guest", lora_path=path).status_code == 200
            answer = pool.submit(ask, client, "guest", tokens=200)
            wait_until(lambda answer=answer: answer.done() or server.metrics()[running])
            with server.client() as other:
                assert change(other, "unload", lora_name="guest").status_code == 200
            assert answer.result(TIMEOUT)  # the unload waited for the request
        done.set()
        assert all(each.result(TIMEOUT) for each in loads)


def test_metrics_have_requests_per_adapter_and_evictions(server: ServerProcess) -> None:
    server.until_metric('unmask_lora_requests_running{lora="one"}', 0)
    server.until_metric('unmask_lora_requests_waiting{lora="one"}', 0)
    with server.client() as client:
        for model in ("one", "two", "fromfile"):  # one more than --max-loras
            ask(client, model)
    server.until(lambda: server.metrics()["unmask_lora_evictions_total"] > 0)


@pytest.mark.matrix
def test_a_restarted_replica_loads_its_adapters_again(server: ServerProcess, adapter_dirs: Path) -> None:
    with server.client() as client:
        assert change(client, "load", lora_name="late", lora_path=str(adapter_dirs / "p4")).status_code == 200
        assert change(client, "unload", lora_name="two").status_code == 200
        before = {name: ask(client, name) for name in names(client)}
        assert before.keys() == {"base", "one", "fromfile", "late"}
        failures = server.metrics()["unmask_backend_failures_total"]
        (backend,) = server.backends()
        backend.kill()
        server.until_metric("unmask_backend_failures_total", failures + 1)
        server.until_ready()
        assert names(client) == before.keys()
        assert {name: ask(client, name) for name in before} == before
        # Other tests use this server, in any order.
        assert change(client, "unload", lora_name="late").status_code == 200
        assert change(client, "load", lora_name="two", lora_path=str(adapter_dirs / "p1")).status_code == 200


def test_routes_of_adapters_need_a_flag(fake: ServerProcess, adapter_dirs: Path) -> None:
    with fake.client() as client:
        answer = change(client, "load", lora_name="x", lora_path=str(adapter_dirs / "p1"))
    assert answer.status_code == 403
    assert "--lora-routes" in answer.json()["error"]["message"]


def test_lists_of_adapters_may_have_merge_keys(tmp_path: Path) -> None:
    (tmp_path / "adapters.yaml").write_text("<<: {a: /x, c: /z}\nb: /y\nc: /own\n")
    assert read_lora_config(str(tmp_path / "adapters.yaml")) == {"a": "/x", "b": "/y", "c": "/own"}


@pytest.mark.parametrize("directory", [False, True])
def test_a_list_of_adapters_is_read_again_only_if_it_changed(tmp_path: Path, directory: bool) -> None:
    path = tmp_path if directory else tmp_path / "adapters.yaml"
    assert directory or lora_config_stamp(str(path)) is None
    (tmp_path / "adapters.yaml").write_text("a: /x")
    stamps = [lora_config_stamp(str(path)), lora_config_stamp(str(path))]
    (tmp_path / "adapters.yaml").write_text("a: /xy")
    stamps.append(lora_config_stamp(str(path)))
    (tmp_path / "other.yaml").write_text("b: /y")
    (tmp_path / "other.yaml").rename(tmp_path / "adapters.yaml")
    stamps.append(lora_config_stamp(str(path)))
    assert stamps[0] == stamps[1]
    assert len({str(stamp) for stamp in stamps}) == 3


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a: /x\na: /y", "cannot be parsed (line 1, column 1): the key 'a' occurs twice"),
        ("a: 2024-13-45", "cannot be parsed (line 1, column 4): the value does not fit its YAML type"),
        ("? [a]\n: /x", "cannot be parsed (line 1, column 1): the value does not fit its YAML type"),
        ("a: {", "cannot be parsed (line 1, column 5)"),
        ("a: 1", "must map names of adapters to where they are, and 'a' does not"),
    ],
)
def test_a_list_of_adapters_that_is_not_one(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "adapters.yaml").write_text(text)
    with pytest.raises(ConfigError) as error:
        read_lora_config(str(tmp_path / "adapters.yaml"))
    assert reason in str(error.value)


def test_a_change_applies_in_every_frontend_process_once_it_is_answered(checkpoint: Path, adapter_dirs: Path) -> None:
    flags = ["--frontend-processes", "2", "--lora-routes", "--served-model-name", "base"]
    with serving("--model", str(checkpoint), *flags) as server, clients(server) as each:
        texts = set()
        for number, client in enumerate(each * 2):
            other = each[number % 2 - 1]
            loaded = {"base", "a"}
            assert change(client, "load", lora_name="a", lora_path=str(adapter_dirs / f"p{number}")).status_code == 200
            assert [names(one) for one in each] == [loaded, loaded]
            found = {ask(one, "a") for one in each}
            assert len(found) == 1  # both processes use the same adapter
            texts |= found
            assert change(client, "load", lora_name="b", lora_path="/nowhere").status_code == 400
            assert [names(one) for one in each] == [loaded, loaded]
            assert change(other, "unload", lora_name="a").status_code == 200
            assert [names(one) for one in each] == [{"base"}, {"base"}]
            assert other.post("/v1/completions", json={"model": "a", "prompt": "x"}).status_code == 404
        assert len(texts) == 4
        server.until_metric("unmask_requests_running", 0)

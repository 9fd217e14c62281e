"""Tests of downloads from object stores to a volume, with obstore and a stub of S3 and Google Cloud Storage."""

from __future__ import annotations

import functools
import json
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from obstore.store import from_url

from e2e.stubs.buckets import PAGE, Buckets, Handler, Server
from e2e.stubs.hub import checkpoint
from runtime import fetch
from runtime.errors import ConfigError
from runtime.weights import bucket, snapshots
from runtime.weights.checkpoint_files import REPOSITORY
from runtime.weights.hub import AccessError, TemporaryError
from tests.weights.test_before_download import DEMO

FILES = checkpoint(DEMO)
SHARD = "model-00002-of-00004.safetensors"
URI = "s3://models/org/name"
UNREAD = {"": b"", "README.md": b"x", "weights.bin": b"x", ".git/config.json": b"{}", "onnx/config.json": b"{}"}


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Buckets]:
    """Yields an object store that the variables of this process name, for each request once."""
    files = {f"org/name/{name}": content for name, content in (FILES | UNREAD).items()}
    buckets = Buckets(files | {"org/names/config.json": b"{}"})
    server = Server(("127.0.0.1", 0), type("Bound", (Handler,), {"buckets": buckets}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_address[1]}"
    key = {"gcs_base_url": url, "disable_oauth": True, "client_email": "", "private_key": "", "private_key_id": ""}
    environ = {
        "AWS_ENDPOINT_URL": url,
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "GOOGLE_SERVICE_ACCOUNT_KEY": json.dumps(key),
        "NO_PROXY": "*",
    }
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("obstore.store.from_url", functools.partial(from_url, retry_config={"max_retries": 0}))
    monkeypatch.setattr(bucket, "PIECE", 4096)
    yield buckets
    server.shutdown()
    server.server_close()


def download(root: Path, uri: str = URI) -> str:
    """Downloads a model to the volume. Returns the commit."""
    return str(fetch.fetch(uri, root, None, "writer", lambda *_: None)["commit"])


def content(root: Path, commit: str, uri: str = URI) -> dict[str, bytes]:
    folder = root / snapshots.key(uri) / commit
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("uri", [URI, "gs://models/org/name"])
def test_a_snapshot_has_what_the_server_reads_and_is_downloaded_once(store: Buckets, tmp_path: Path, uri: str) -> None:
    commit = download(tmp_path, uri)
    assert content(tmp_path, commit, uri) == FILES | {REPOSITORY: b"org/name\n"}
    assert store.requests == {f"org/name/{name}": 1 for name in FILES}
    assert store.lists > len(FILES) // PAGE
    asked = store.lists
    assert download(tmp_path, f"{uri}@{commit}") == commit
    assert store.lists == asked, "a complete snapshot needs no store"

    store.objects["org/name/config.json"] += b" "
    assert download(tmp_path, f"{uri}@{commit}") == commit
    newer = download(tmp_path, uri)
    assert newer != commit
    assert content(tmp_path, newer, uri)["config.json"] == FILES["config.json"] + b" "


def test_an_attempt_that_ended_halfway_is_continued(store: Buckets, tmp_path: Path) -> None:
    store.broken = f"org/name/{SHARD}"
    with pytest.raises(TemporaryError, match="body error"):
        download(tmp_path)
    complete = {name: count for name, count in store.requests.items() if name != store.broken}
    store.broken = ""
    commit = download(tmp_path)
    assert content(tmp_path, commit) == FILES | {REPOSITORY: b"org/name\n"}
    assert store.starts[f"org/name/{SHARD}"] > 0
    assert complete.items() <= store.requests.items(), "complete files were downloaded again"


def changed(store: Buckets, name: str) -> None:
    store.objects[name] = bytes(len(store.objects[name]))


def added(store: Buckets, name: str) -> None:
    store.objects[f"{name}.new"] = b""


def removed(store: Buckets, name: str) -> None:
    del store.objects["org/name/README.md"]


@pytest.mark.parametrize("change", [changed, added, removed])
@pytest.mark.parametrize("asked", ["config.json", SHARD])
def test_a_prefix_that_changes_meanwhile_is_not_published(
    store: Buckets, tmp_path: Path, change: Callable[[Buckets, str], None], asked: str
) -> None:
    def sending(key: str) -> None:
        if key == f"org/name/{asked}" and store.requests[key] == 1:
            change(store, f"org/name/{SHARD}")

    store.sending = sending  # type: ignore[method-assign]
    with pytest.raises(TemporaryError, match="changed during the download"):
        download(tmp_path)
    assert not list(tmp_path.glob("*/*.json"))
    assert content(tmp_path, download(tmp_path))[SHARD] == store.objects[f"org/name/{SHARD}"]


def test_an_object_that_is_gone_when_it_is_read_needs_another_attempt(store: Buckets, tmp_path: Path) -> None:
    shard = store.objects[f"org/name/{SHARD}"]

    def sending(key: str) -> None:
        if key == "org/name/config.json" and store.requests[key] == 1:
            del store.objects[f"org/name/{SHARD}"]

    store.sending = sending  # type: ignore[method-assign]
    with pytest.raises(TemporaryError, match="an object changed during the download"):
        download(tmp_path)
    store.objects[f"org/name/{SHARD}"] = shard
    assert content(tmp_path, download(tmp_path)) == FILES | {REPOSITORY: b"org/name\n"}


def test_errors_name_the_cause_and_say_whether_to_try_again(
    store: Buckets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = download(tmp_path / "other")
    store.objects["org/name/config.json"] += b" "
    store.access_key = "key"
    cases: list[tuple[str, dict[str, str], type[ConfigError], str]] = [
        ("s3://models", {}, ConfigError, "is not of the form s3://bucket/prefix"),
        ("s3://models/../name", {}, ConfigError, "is not of the form s3://bucket/prefix"),
        ("s3://models/nobody/name", {}, ConfigError, "no object below this prefix"),
        ("s3://nothing/name", {}, ConfigError, "the bucket does not exist"),
        ("s3://models/org", {}, ConfigError, "has no config.json"),
        (f"{URI}@{old}", {}, ConfigError, f"and no longer {old}; restart the service"),
        (URI, {"AWS_ACCESS_KEY_ID": "wrong"}, AccessError, "check the Secret of spec.model.credentialsSecretRef"),
        (URI, {"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}, TemporaryError, "error sending request"),
    ]
    for uri, variables, kind, says in cases:
        with monkeypatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            with pytest.raises(ConfigError) as error:
                download(tmp_path, uri)
        assert (type(error.value), says in str(error.value)) == (kind, True), error.value
        assert "\n" not in str(error.value)
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    with pytest.raises(ConfigError, match=r"install unmask\[stores\]"):
        download(tmp_path)
    assert not list(tmp_path.glob("*/*.json"))

"""Tests of models from the Hugging Face Hub, which huggingface_hub downloads from a local stub."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from e2e.stubs.hub import Handler, Hub
from runtime.weights.checkpoint import resolve_checkpoint

TOKEN = "hf_right"
# Runs in a separate process, because huggingface_hub reads its environment once, at import.
FETCH = """
import json, sys
from runtime.errors import ConfigError
from runtime.weights.checkpoint import resolve_checkpoint, resolve_text_files

what, *models = sys.argv[1:]
for model in models:
    told = []
    try:
        text = what == "text"
        path = resolve_text_files(model) if text else resolve_checkpoint(model, lambda *word: told.append(word)).path
        print(json.dumps({"files": sorted(file.name for file in path.iterdir()), "told": told}))
    except ConfigError as error:
        print(json.dumps({"error": str(error)}))
"""


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    class Stub(Handler):
        hub = Hub.of(resolve_checkpoint(None).path, TOKEN, bytes_per_second=4e6)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Stub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def fetch(endpoint: str, home: Path, *models: str, token: str = TOKEN, what: str = "all", **env: str) -> list[Any]:
    environ = {k: v for k, v in os.environ.items() if not k.startswith("HF_") and not k.lower().endswith("_proxy")}
    environ |= {"HF_ENDPOINT": endpoint, "HF_HOME": str(home)} | ({"HF_TOKEN": token} if token else {}) | env
    command = [sys.executable, "-c", FETCH, what, *models]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert TOKEN not in done.stdout + done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.matrix
def test_a_download_reports_its_progress(endpoint: str, tmp_path: Path) -> None:
    (found,) = fetch(endpoint, tmp_path, "hf://org/private@v1")
    assert "config.json" in found["files"]
    assert len([f for f in found["files"] if f.endswith(".safetensors")]) == 4
    messages = found["told"]
    assert all(phase == "download" for phase, _, _ in messages)
    totals = {total for _, _, total in messages}
    assert len(totals) == 1
    assert totals.pop() > 11e6
    done = [done for _, done, _ in messages]
    assert done == sorted(done)
    assert len(set(done)) >= 3, done  # one report per shard


def test_text_files_are_fetched_without_weights(endpoint: str, tmp_path: Path) -> None:
    (found,) = fetch(endpoint, tmp_path, "hf://org/private@v1", what="text")
    assert "tokenizer.json" in found["files"]
    assert not [f for f in found["files"] if f.endswith(".safetensors")]


@pytest.mark.parametrize(
    ("token", "messages"),
    [
        ("", {"hf://org/private@v1": "does not exist, or it needs a token; check its name, or set HF_TOKEN"}),
        ("hf_wrong", {"hf://org/private@v1": "the hub does not accept the token in HF_TOKEN"}),
        (TOKEN, {
            "hf://org/gated": "the token in HF_TOKEN (of a DiffusionLMService: spec.model.tokenSecretRef) may not",
            "hf://org/missing": "does not exist, or the token in HF_TOKEN",
            "hf://org/private@v9": "the repository has no revision 'v9'",
        }),
    ],
)  # fmt: skip
def test_download_errors_name_the_reason(endpoint: str, tmp_path: Path, token: str, messages: dict[str, str]) -> None:
    found = fetch(endpoint, tmp_path, *messages, token=token)
    for (model, message), each in zip(messages.items(), found, strict=True):
        assert message in each["error"]
        assert repr(model) in each["error"]
        assert "\n" not in each["error"]


def test_a_hub_that_cannot_be_reached(tmp_path: Path) -> None:
    (found,) = fetch("http://127.0.0.1:9", tmp_path, "hf://org/private")
    says = "--model 'hf://org/private' could not be fetched: the hub http://127.0.0.1:9 cannot be reached"
    assert says in found["error"]
    assert "ConnectError: [Errno 111] Connection refused" in found["error"]
    assert "check the network, the proxy (HTTPS_PROXY) and HF_ENDPOINT, or give a directory" in found["error"]


def test_a_hub_in_offline_mode(tmp_path: Path) -> None:
    (found,) = fetch("http://127.0.0.1:9", tmp_path, "hf://org/x", HF_HUB_OFFLINE="1")
    assert "HF_HUB_OFFLINE is set; unset it" in found["error"]

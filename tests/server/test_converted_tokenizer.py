"""Tests of a server of a checkpoint without tokenizer.json.

One child process converts the tokenizer, and no other process imports transformers. The answers are those of the
checkpoint with tokenizer.json.
"""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.checkpoint import without_tokenizer_json
from tests.server.harness import serving

# Appends a row to the file in IMPORTS_OF when a process imports one of the packages.
SITECUSTOMIZE = """
import os, sys
class Recorder:
    def find_spec(self, name, path=None, target=None):
        if name in ("transformers", "tokenizers", "torch", "sentencepiece", "tiktoken"):
            with open(os.environ["IMPORTS_OF"], "a") as file:
                file.write(name + " " + " ".join(sys.orig_argv[1:]) + "\\n")
sys.meta_path.insert(0, Recorder())
"""
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 16, "temperature": 0}


@pytest.fixture
def temporary() -> Iterator[Path]:
    """Yields a directory with a short path, because paths of the server's sockets have at most 107 bytes."""
    with tempfile.TemporaryDirectory() as directory:
        yield Path(directory)


@pytest.mark.parametrize(
    ("flags", "writable"),
    [
        pytest.param((), True, id="cached"),
        pytest.param(("--frontend-processes", "2"), False, id="no cache", marks=pytest.mark.matrix),
    ],
)
def test_only_the_converting_process_imports_transformers(
    server, checkpoint: Path, tmp_path: Path, temporary: Path, flags: tuple[str, ...], writable: bool
) -> None:
    (tmp_path / "hook").mkdir()
    (tmp_path / "hook" / "sitecustomize.py").write_text(SITECUSTOMIZE)
    records, home = tmp_path / "records", tmp_path / "home"
    home.mkdir() if writable else home.write_text("a file where the cache belongs")
    paths = [str(tmp_path / "hook"), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = {"PYTHONPATH": os.pathsep.join(paths), "IMPORTS_OF": str(records)}
    env |= {"XDG_CACHE_HOME": str(home), "TMPDIR": str(temporary)}
    with server.client() as client:
        expected = client.post("/v1/chat/completions", json=CHAT).json()["choices"]
    model = without_tokenizer_json(checkpoint, tmp_path / "tiny")
    with serving("--model", str(model), "--served-model-name", "tiny", *flags, env=env) as converted:
        with converted.client() as client:
            assert client.post("/v1/chat/completions", json=CHAT).json()["choices"] == expected
            answer = client.post("/v1/chat/completions", json=CHAT | {"structured_outputs": {"regex": "[ab]{4}"}})
            assert set(answer.json()["choices"][0]["message"]["content"]) <= {"a", "b"}
        if not writable:
            assert list(temporary.glob("unmask-*/tokenizers/*.json"))
    rows = records.read_text().splitlines()
    importers = {name: [row for row in rows if row.startswith(f"{name} ")] for name in ("transformers", "tokenizers")}
    assert len(importers["transformers"]) == 1
    assert "runtime.weights.tokenizer_conversion" in importers["transformers"][0]
    assert len({row for row in importers["tokenizers"] if "tokenizer_conversion" not in row}) >= 2
    assert not [row for row in rows if row.startswith("torch ") and "tokenizer_conversion" in row]
    assert len(list((home / "unmask" / "tokenizers").glob("*.json"))) == 1 if writable else home.is_file()
    assert list(temporary.glob("unmask-*")) == []

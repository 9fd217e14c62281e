"""Tests that a model is refused before its weights are downloaded, on each path that loads one, and what is downloaded.

A local stub of the hub counts requests for weights.
"""

from __future__ import annotations

import hashlib
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

from e2e.stubs.hub import Handler, Hub, checkpoint
from runtime.weights.checkpoint import resolve_checkpoint
from tests.golden import GOLDEN
from tests.matrix import marked
from tests.quantization.packed_integers import gptq_config
from tests.server.harness import REAL, ROOT
from tests.wait import TIMEOUT

DEMO, TINY = resolve_checkpoint(None).path, GOLDEN / "llada2_tiny"
SHARD_BYTES = 30_000_000  # of each of four shards, if a test may not ask for one
# Loads models in a process of its own, as huggingface_hub reads its environment at import. Prints a line per model.
LOAD = """
import json, logging, shutil, sys
from pathlib import Path
from runtime.config import EngineConfig
from runtime.engine import fit
from runtime.errors import ConfigError

logging.basicConfig(level="WARNING", stream=sys.stderr, format="%(message)s")
for flags, patches in json.loads(sys.argv[1]):
    fit._MEMORY = Path(patches.get("memory", "/proc/meminfo"))
    if "free" in patches:
        shutil.disk_usage = lambda path: type("Usage", (), {"free": patches["free"]})
    try:
        config = EngineConfig.from_flags(device="cpu", **flags)
        if config.tensor_parallel_size > 1:
            from runtime.executor.executor import local_engine

            engine, ranks = local_engine(config)
        else:
            from runtime.engine.setup import load_engine

            engine = load_engine(config)
        print(json.dumps({"family": engine.info.family}))
    except ConfigError as error:
        print(json.dumps({"error": str(error)}))
"""


Case = tuple[dict[str, Any], dict[str, Any]]  # flags, and what is patched


def commit(name: str) -> str:
    return hashlib.sha1(name.encode()).hexdigest()


class Stub:
    """A hub with one repository, `org/private`, that has a commit per checkpoint. It records requests for files."""

    def __init__(self) -> None:
        self.hub = Hub({}, "", bytes_per_second=1e12)
        self.asked = asked = []  # names of requested files

        class Recorder(Handler):
            hub = self.hub

            def send_file(self, commit: str, content: bytes | None) -> None:
                asked.append(self.path.partition("/resolve/")[2].partition("/")[2])
                super().send_file(commit, content)

            def log_message(self, *_: object) -> None:
                pass

        self.hub.refusal = lambda repository, authorization: None  # type: ignore[method-assign]
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Recorder)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def add(self, name: str, files: dict[str, bytes]) -> str:
        """Adds a checkpoint. Returns its address."""
        self.hub.commits[commit(name)] = files
        return f"hf://org/private@{commit(name)}"

    def environ(self, home: Path, **variables: str) -> dict[str, str]:
        clean = {k: v for k, v in os.environ.items() if not k.startswith("HF_") and not k.lower().endswith("_proxy")}
        endpoint = f"http://127.0.0.1:{self.server.server_address[1]}"
        return clean | {"HF_ENDPOINT": endpoint, "HF_HOME": str(home)} | variables

    def load(
        self, home: Path, *cases: tuple[dict[str, Any], dict[str, Any]], **variables: str
    ) -> tuple[list[Any], str]:
        """Loads models. Returns a result per model, and the log."""
        command = [sys.executable, "-c", LOAD, json.dumps(cases)]
        environ = self.environ(home, **variables)
        done = subprocess.run(command, env=environ, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT)
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()], done.stderr

    def shards_asked(self) -> list[str]:
        return [name for name in self.asked if name.endswith(".safetensors")]


@pytest.fixture
def stub() -> Iterator[Stub]:
    made = Stub()
    yield made
    made.server.shutdown()
    made.server.server_close()


def files_of(config: dict[str, Any] | None = None, without: tuple[str, ...] = ()) -> dict[str, bytes]:
    """Returns the files of the demo with 120 MB of weights that cannot be loaded, and fields of config.json changed."""
    files = {name: content for name, content in checkpoint(DEMO).items() if name not in without}
    files |= {name: bytes(SHARD_BYTES) for name in files if name.endswith(".safetensors")}
    old = json.loads(files["config.json"])
    files["config.json"] = json.dumps(old | (config or {})).encode()
    return files


MEMORY = "MemTotal: 9999999 kB\nMemAvailable: 25000 kB\n"  # less than the demo's 28.6 MB, and more than with fp8
# fields of config.json, flags, what is patched, and a part of the message
REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any], str]] = {
    "family": ({"model_type": "nobody"}, {}, {}, "belongs to no known family"),
    "rope scaling": ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, {}, {}, "rope_scaling"),
    "field": ({"num_attention_heads": "many"}, {}, {}, "num_attention_heads"),
    "length": ({}, {"max_model_len": 100_000}, {}, "--max-model-len 100000 is more than the checkpoint's limit"),
    "mask": ({}, {"mask_token_id": 10**6}, {}, "--mask-token-id 1000000 is outside the vocabulary"),
    "strategy": ({}, {"decoding_strategy": "full"}, {}, "--decoding-strategy 'full' does not fit this model"),
    "decoding flag": ({}, {"full_cache": "prefix"}, {}, "--full-cache is not supported by multi_bd"),
    "page": ({}, {"page_size": 48}, {}, "--page-size 48 is neither a multiple nor a divisor"),
    "adapter": ({}, {"lora": ("a=/nowhere",)}, {}, "adapter '/nowhere' is not a directory"),
    "flag of ranks": ({}, {"tensor_parallel_size": 2, "max_model_len": 100_000}, {}, "--max-model-len 100000 is more"),
    "activation order": (
        {"quantization_config": gptq_config(4, 32, desc_act=True)}, {"tensor_parallel_size": 2}, {},
        "--tensor-parallel-size 2: config.json: quantization_config's desc_act is true",
    ),
    "memory": ({}, {}, {"memory": MEMORY}, "weights (28.6 MB)"),
    "memory of pages": ({}, {"num_pages": 10**12}, {}, "set a smaller --num-pages, at most "),
    "disk": ({}, {}, {"free": 119_000_000}, "0.12 GB are to be downloaded, but "),
}  # fmt: skip


def test_refusals_come_before_the_first_byte_of_the_weights(stub: Stub, tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text(MEMORY)
    cases, messages = [], []
    for name, (config, flags, patches, message) in REFUSED.items():
        patches = patches | ({"memory": str(tmp_path / "meminfo")} if "memory" in patches else {})
        cases.append(({"model": stub.add(name, files_of(config))} | flags, patches))
        messages.append(message)
    cases.append(({"model": stub.add("no tokenizer", files_of(without=("tokenizer.json",)))}, {}))
    messages.append("tokenizer.json")
    template = {"chat_template.jinja": b"{% if %}"}
    cases.append(({"model": stub.add("template", files_of(without=("tokenizer_config.json",)) | template)}, {}))
    messages.append("template")
    lacks = files_of(without=("model-00003-of-00004.safetensors",))
    cases.append(({"model": stub.add("lacks a shard", lacks)}, {}))
    messages.append("lacks 'model-00003-of-00004.safetensors', which model.safetensors.index.json lists")
    for name, gone in (("lacks a tensor", "model.norm.weight"), ("has one more", "")):
        files = files_of()
        index = json.loads(files["model.safetensors.index.json"])
        index["weight_map"] = {tensor: file for tensor, file in index["weight_map"].items() if tensor != gone}
        index["weight_map"] |= {} if gone else {"model.surplus": "model-00001-of-00004.safetensors"}
        files["model.safetensors.index.json"] = json.dumps(index).encode()
        cases.append(({"model": stub.add(name, files)}, {}))
        messages.append(f"(1 missing: {gone!r})" if gone else "(1 unknown: 'model.surplus')")
    cases.sort(key=lambda case: "free" in case[1])  # the patch of the disk stays
    messages.sort(key=lambda message: "to be downloaded" in message)

    results, _ = stub.load(tmp_path / "home", *cases)
    assert len(results) == len(messages)
    for result, message in zip(results, messages, strict=True):
        assert message in result.get("error", result)
        assert "\n" not in result["error"]
    assert stub.shards_asked() == []
    (proposal,) = [each["error"].split("; ")[1] for each in results if "; set --quantization" in each["error"]]
    assert proposal.startswith("set --quantization fp8 (weights: ")


@pytest.mark.processes
@pytest.mark.matrix
@pytest.mark.parametrize("ranks", [("--data-parallel-size", "2"), ("--tensor-parallel-size", "2")])
@pytest.mark.parametrize(
    ("flags", "files", "message"),
    [
        (("--max-model-len", "100000"), files_of(), "--max-model-len 100000 is more than"),
        ((), files_of() | {"chat_template.jinja": b"{% if %}"}, "template"),
    ],
)
def test_a_server_ends_before_a_download(
    stub: Stub, tmp_path: Path, ranks: tuple[str, ...], flags: tuple[str, ...], files: dict[str, bytes], message: str
) -> None:
    command = [sys.executable, "-m", REAL, "--port", "0", "--host", "127.0.0.1", "--device", "cpu", *ranks, *flags]
    command += ["--model", stub.add("server", files)]
    environ = stub.environ(tmp_path)
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=TIMEOUT)
    assert done.returncode == 1
    assert message in done.stderr.splitlines()[-1]
    assert stub.shards_asked() == []


OTHERS = {
    "linear_spec_lora/adapter_model.safetensors": b"x",
    "linear_spec_lora/adapter_config.json": b"{}",
    "consolidated.safetensors": b"x",
    "adapter_model.safetensors": b"x",
    "modeling_private.py": b"raise SystemExit",
    "pytorch_model.bin": b"x",
    "README.md": b"x",
}


@pytest.mark.parametrize("index", [True, False])
def test_only_files_that_are_read_are_fetched(stub: Stub, tmp_path: Path, index: bool) -> None:
    files = checkpoint(TINY) | {"additional_chat_templates/tool_use.jinja": b"{{ messages }}"}
    if not index:
        del files["model.safetensors.index.json"]
    model = stub.add("others", files | OTHERS)
    results, _ = stub.load(tmp_path, *[({"model": model, "skip_tokenizer": True}, {})] * 2)
    assert results == [{"family": "llada2"}] * 2
    assert set(stub.asked) == set(files)


# files that are gone from the cache, whether the cache lists the repository's files, and a part of error or log
PARTIAL: dict[str, tuple[tuple[str, ...], bool, str, str]] = {
    "complete": ((), True, "", ""),
    "text that the cache lists": (("generation_config.json",), True, "generation_config.json", ""),
    "text": (("generation_config.json",), False, "", "no generation_config.json, so its end tokens"),
    "a shard that the cache lists": (("model-00002-of-00004.safetensors",), True, "'model-00002-of-00004.safet", ""),
    "a shard": (("model-00002-of-00004.safetensors",), False, "'model-00002-of-00004.safetensors'", ""),
    "a numbered shard": (
        ("model-00002-of-00004.safetensors", "model.safetensors.index.json"), False, "lacks number 2 of 4", ""
    ),
    "another checkpoint": (("linear_spec_lora/adapter_config.json",), True, "", ""),
}  # fmt: skip


@pytest.mark.parametrize("offline", marked(["HF_HUB_OFFLINE", "HF_ENDPOINT"], quick=["HF_HUB_OFFLINE"]))
def test_a_partial_download_without_the_hub(stub: Stub, tmp_path: Path, offline: str) -> None:
    """A cache that lacks files is refused, or the log names what it lacks if the repository may not have it either."""
    files = checkpoint(TINY) | OTHERS | dict.fromkeys(("generation_config.json", "tokenizer_config.json"), b"{}")
    models = [stub.add(case, files | {"chat_template.jinja": b"{{ messages }}"}) for case in PARTIAL]
    cases: list[Case] = [({"model": model, "skip_tokenizer": True}, {}) for model in models]
    assert stub.load(tmp_path, *cases)[0] == [{"family": "llada2"}] * len(PARTIAL)
    (repository,) = (tmp_path / "hub").glob("models--*")
    for case, (gone, listed, _, _) in PARTIAL.items():
        for name in gone:
            (repository / "snapshots" / commit(case) / name).unlink(missing_ok=True)
        if not listed:
            (repository / "trees" / f"{commit(case)}.json").unlink()
    without = {offline: "1" if offline == "HF_HUB_OFFLINE" else "http://127.0.0.1:9"}
    results, log = stub.load(tmp_path, *cases, **without)
    for model, result, (_, _, error, warning) in zip(models, results, PARTIAL.values(), strict=True):
        assert error in result.get("error", ""), result
        assert bool(error) == ("error" in result), result
        (line,) = [line for line in log.splitlines() if model in line] or [""]
        assert warning in line
        assert bool(warning) == ("may be incomplete" in line), line

"""Tests of `unmask pull`: what it downloads from a stub of the hub, that it continues, and what it says."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from e2e.stubs.hub import checkpoint
from runtime.weights.checkpoint_files import REPOSITORY
from runtime.weights.repository import repository_names
from tests.server.harness import ROOT
from tests.wait import TIMEOUT, wait_until
from tests.weights.test_before_download import DEMO, OTHERS, Stub, commit, files_of, stub

__all__ = ["stub"]
SHARD = "model-00002-of-00004.safetensors"


def pull(stub: Stub, home: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "runtime.cli", "pull", *arguments]
    environ = stub.environ(home, **variables)
    return subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=TIMEOUT)


@pytest.mark.parametrize("plain", [True, False])
def test_what_the_server_reads_is_downloaded_once(stub: Stub, tmp_path: Path, plain: bool) -> None:
    files = checkpoint(DEMO)
    model = stub.add("model", files | OTHERS)
    to = ["--to", str(tmp_path / "models" / "demo")] if plain else []
    done = pull(stub, tmp_path / "home", model, *to)
    assert done.returncode == 0, done.stderr
    directory = Path(done.stdout.strip())
    assert directory == tmp_path / "models" / "demo" if plain else directory.name == commit("model")
    written = files | ({REPOSITORY: b"org/private\n"} if plain else {})
    assert {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()} == written
    assert repository_names(str(directory), directory, {})[0] == "org/private"
    assert f"commit {commit('model')}: {len(files)} files, 0.0" in done.stderr

    # A file that is gone, and one with another content, are downloaded again. The latter takes another call.
    other = directory / "model-00003-of-00004.safetensors"
    (directory / SHARD).unlink()
    content = bytearray(other.read_bytes())
    content[-1] ^= 1
    if not plain:
        other.resolve().write_bytes(content)
        stub.asked.clear()
        again = pull(stub, tmp_path / "home", model, *to)
        assert again.returncode == 1
        assert f"error: {other.name!r} differed from the hub and was removed; call again\n" in again.stderr
    else:
        other.unlink()
    stub.asked.clear()
    done = pull(stub, tmp_path / "home", model, *to)
    assert done.returncode == 0, done.stderr
    assert {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()} == written
    weights = set(stub.shards_asked())
    assert weights <= {SHARD, other.name}
    assert other.name in weights


@pytest.mark.parametrize("command", ["pull", "verify"])
def test_ctrl_c_ends_a_download_at_once(stub: Stub, tmp_path: Path, command: str) -> None:
    stub.hub.released.clear()  # from the half on, a byte per second is sent
    code = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a test's may be ignored
    code += "from runtime.cli import main; sys.exit(main())"
    arguments = [sys.executable, "-c", code, command, stub.add("model", checkpoint(DEMO))]
    own = {"cwd": ROOT, "env": stub.environ(tmp_path), "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(arguments, **own) as process:
        try:
            wait_until(stub.shards_asked)
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=TIMEOUT)
        finally:
            stub.hub.released.set()
            process.kill()
    assert process.returncode == 1
    assert "error: interrupted; " in errors.splitlines()[-1]  # behind a progress bar, if there is one


def test_errors_are_one_line_and_say_whether_to_call_again(stub: Stub, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    lacks = stub.add("lacks", {name: text for name, text in checkpoint(DEMO).items() if name != SHARD})
    pickled = stub.add("pickled", {"config.json": b"{}", "pytorch_model.bin": b"x"})
    good, gguf = stub.add("good", checkpoint(DEMO)), stub.add("gguf", {"model.gguf": b"x"})
    family = stub.add("family", files_of({"model_type": "llama", "architectures": ["LlamaForCausalLM"]}))
    method = stub.add("method", files_of({"quantization_config": {"quant_method": "exl3"}}))
    tensors = stub.add("tensors", files_of({"num_hidden_layers": 1}))
    cases: list[tuple[list[str], dict[str, str], int, str]] = [
        (["/models/x"], {}, 2, "'/models/x' is not org/name or hf://org/name"),
        (["org/private@" + commit("nothing")], {}, 2, "no revision"),
        ([lacks], {}, 2, f"lacks {SHARD!r}, which model.safetensors.index.json lists"),
        ([pickled], {}, 2, "holds no safetensors file"),
        ([family], {}, 2, "belongs to no known family"),
        ([family, "--model-name", "diffullama", "--max-model-len", "99999"], {}, 2, "--max-model-len 99999 is more"),
        ([method], {}, 2, "quant_method is 'exl3', which is not supported"),
        ([tensors], {}, 2, "unknown: "),
        ([good, "--quantisation", "int4"], {}, 2, "no such flag"),
        ([gguf], {}, 2, f"{gguf} has no config.json, so it is no checkpoint in the format of Hugging Face"),
        ([good, "--to", str(tmp_path / "file" / "x")], {}, 2, "cannot be written: Not a directory; name a directory"),
        ([good], {"HF_ENDPOINT": "http://127.0.0.1:9"}, 1, "cannot be reached"),
        ([good], {"HF_HUB_OFFLINE": "1"}, 1, "HF_HUB_OFFLINE is set"),
    ]
    for arguments, variables, code, says in cases:
        done = pull(stub, tmp_path / "home", *arguments, **variables)
        assert done.returncode == code, done
        assert done.stdout == ""
        assert done.stderr.splitlines()[-1].startswith("error: ")
        assert says in done.stderr.splitlines()[-1]
    assert stub.shards_asked() == []

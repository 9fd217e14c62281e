"""A server that cannot start ends with one sentence, in the format of its log, whatever the cause."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.numpy import save_file

from runtime.config import log_format
from tests.matrix import marked
from tests.server.checkpoint import CONFIG, make_weights
from tests.server.harness import REAL, ROOT
from tests.wait import TIMEOUT

pytestmark = pytest.mark.processes


def start(*flags: str, program: tuple[str, ...] = ("-m", REAL), **variables: str) -> list[str]:
    """Runs a server that cannot start, and returns the lines on stderr."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("UNMASK_")}
    command = [sys.executable, *program, "--port", "0", "--host", "127.0.0.1", "--log-level", "error", *flags]
    done = subprocess.run(command, cwd=ROOT, env=clean | variables, capture_output=True, text=True, timeout=TIMEOUT)
    assert (done.returncode, done.stdout) == (1, "")
    return done.stderr.splitlines()


def config(directory: Path, **changes: object) -> None:
    (directory / "config.json").write_text(json.dumps({**CONFIG, **changes}))


def lose(directory: Path, name: str) -> None:
    tensors = make_weights(1)
    del tensors[name]
    save_file(tensors, directory / "model.safetensors")


# What breaks a copy of the checkpoint, and a part of the sentence.
BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "no directory": (shutil.rmtree, "is not a directory"),
    "no config": (lambda directory: (directory / "config.json").unlink(), "config.json"),
    "no tokenizer": (lambda directory: (directory / "tokenizer.json").unlink(), "tokenizer"),
    "no weights": (lambda directory: (directory / "model.safetensors").unlink(), "safetensors"),
    "unknown family": (lambda directory: config(directory, model_type="gpt2"), "gpt2"),
    "missing tensor": (lambda directory: lose(directory, "model.norm.weight"), "model.norm.weight"),
    "a link to secrets": (lambda directory: (directory / "chat_template.jinja").symlink_to("/proc/self/environ"),
                          "chat_template.jinja leads out of the checkpoint"),
    "heads": (lambda directory: config(directory, num_key_value_heads=3), "num_key_value_heads"),
}  # fmt: skip


@pytest.mark.parametrize("case", marked(BROKEN, quick=["missing tensor"]))
def test_a_broken_checkpoint_ends_the_start(checkpoint: Path, tmp_path: Path, case: str) -> None:
    directory = shutil.copytree(checkpoint, tmp_path / "broken")
    breaks, message = BROKEN[case]
    breaks(directory)
    (sentence,) = start("--model", str(directory))
    assert sentence.startswith("error: ")
    assert message in sentence


NO_TEMPORARY_DIRECTORY = (
    "import runpy, tempfile\n"
    "tempfile._candidate_tempdir_list = lambda: []\n"  # as if none of them could be written
    "runpy.run_module('runtime.server', run_name='__main__', alter_sys=True)\n"
)
# The flags, and a part of the sentence.
FLAGS: dict[str, tuple[tuple[str, ...], str]] = {
    "pages": (("--device", "cpu", "--num-pages", str(10**12)), "do not fit in memory"),
    "too many pages": (("--device", "cpu", "--num-pages", str(9 * 10**18)), "smaller --num-pages"),
    "an adapter": (("--lora", "a=/nowhere"), "adapter '/nowhere' is not a directory"),
    "ranks": (("--device", "cpu", "--tensor-parallel-size", "3"), "--tensor-parallel-size 3: must divide"),
    "a flag": (("--wibble",), "--wibble"),
    "a value": (("--max-num-reqs", "many"), "--max-num-reqs"),
    "a parser": (("--tool-call-parser", "nobody"), "--tool-call-parser"),
    "an address": (("--host", "nobody.invalid"), "--host"),
}


@pytest.mark.parametrize("case", marked(FLAGS, quick=["pages", "an adapter", "a flag"]))
def test_a_wrong_flag_ends_the_start(case: str) -> None:
    flags, message = FLAGS[case]
    *_, sentence = start(*flags)
    assert sentence.startswith("error: ")
    assert message in sentence


@pytest.mark.parametrize("case", marked(["a flag", "an adapter", "an address"], quick=["a flag"]))
def test_the_error_has_the_format_of_the_log(case: str) -> None:
    flags, message = FLAGS[case]
    entries = [json.loads(line) for line in start(*flags, UNMASK_LOG_FORMAT="json")]
    assert all({"time", "level", "logger", "process"} <= entry.keys() for entry in entries)
    assert entries[-1]["level"] == "error"
    assert message in entries[-1]["message"]


def test_a_server_without_a_temporary_directory_ends(checkpoint: Path) -> None:
    *_, sentence = start("--model", str(checkpoint), program=("-c", NO_TEMPORARY_DIRECTORY))
    assert "the directory for temporary files cannot be used: No usable temporary directory" in sentence
    assert "set TMPDIR to one that can be written" in sentence


def test_the_format_is_read_from_every_source(tmp_path: Path) -> None:
    file, broken = tmp_path / "flags.yaml", tmp_path / "broken.yaml"
    file.write_text("log-format: json\n")
    broken.write_text("log-format: [")
    for argv, environ, found in (
        ([], {}, "text"),
        (["--log-format", "json"], {}, "json"),
        (["--wibble", "--log-format=json"], {}, "json"),
        ([], {"UNMASK_LOG_FORMAT": "json"}, "json"),
        (["--log-format", "text"], {"UNMASK_LOG_FORMAT": "json"}, "text"),
        (["--config", str(file)], {}, "json"),
        ([], {"UNMASK_CONFIG": str(file)}, "json"),
        ([f"--config={file}"], {"UNMASK_LOG_FORMAT": "text"}, "text"),
        (["--config", str(broken)], {}, "text"),
        (["--config", str(tmp_path / "nothing.yaml")], {}, "text"),
        (["--log-format"], {}, "text"),
        (["--log-format", "xml"], {}, "text"),
    ):
        assert log_format(argv, environ) == found, (argv, environ)

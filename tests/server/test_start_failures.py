"""Tests that the error of a server that cannot start has the format of its log, whatever the cause."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from runtime.config import log_format
from tests.wait import TIMEOUT


def start(*flags: str, environ: dict[str, str] | None = None) -> tuple[int, list[str]]:
    """Runs a server that cannot start, and returns its exit code and the lines on stderr."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("UNMASK_")}
    command = [sys.executable, "-m", "runtime.server", "--port", "0", "--host", "127.0.0.1", *flags]
    done = subprocess.run(
        command, env={**clean, **(environ or {})}, capture_output=True, text=True, timeout=TIMEOUT, check=False
    )
    assert done.stdout == ""
    return done.returncode, done.stderr.splitlines()


CAUSES: dict[str, Callable[[Path], list[str]]] = {
    "no model": lambda folder: ["--model", str(folder / "nothing")],
    "no tokenizer": lambda folder: ["--model", str(folder)],
    "no such flag": lambda folder: ["--wibble"],
    "a wrong value": lambda folder: ["--max-num-reqs", "many"],
    "an unknown parser": lambda folder: ["--tool-call-parser", "nobody"],
    "no such address": lambda folder: ["--host", "nobody.invalid"],
}


@pytest.mark.matrix
@pytest.mark.parametrize("cause", CAUSES)
def test_every_line_is_json_with_the_format_json(tmp_path: Path, cause: str) -> None:
    code, lines = start(*CAUSES[cause](tmp_path), "--log-format", "json")
    assert code == 1
    entries = [json.loads(line) for line in lines]
    assert all({"time", "level", "logger", "process", "message"} <= entry.keys() for entry in entries)
    code, texts = start(*CAUSES[cause](tmp_path))
    assert code == 1
    assert texts[-1] == f"error: {entries[-1]['message']}"
    assert entries[-1]["level"] == "error"


def test_the_format_is_read_from_every_source(tmp_path: Path) -> None:
    file = tmp_path / "flags.yaml"
    file.write_text("log-format: json\n")
    broken = tmp_path / "broken.yaml"
    broken.write_text("log-format: [")
    assert log_format([], {}) == "text"
    assert log_format(["--log-format", "json"], {}) == "json"
    assert log_format(["--wibble", "--log-format=json"], {}) == "json"
    assert log_format([], {"UNMASK_LOG_FORMAT": "json"}) == "json"
    assert log_format(["--log-format", "text"], {"UNMASK_LOG_FORMAT": "json"}) == "text"
    assert log_format(["--config", str(file)], {}) == "json"
    assert log_format([], {"UNMASK_CONFIG": str(file)}) == "json"
    assert log_format([f"--config={file}"], {"UNMASK_LOG_FORMAT": "text"}) == "text"
    for path in (broken, tmp_path / "nothing.yaml"):
        assert log_format(["--config", str(path)], {}) == "text"
    assert log_format(["--log-format"], {}) == "text"
    assert log_format(["--log-format", "xml"], {}) == "text"


def test_the_environment_sets_the_format_too(tmp_path: Path) -> None:
    _, lines = start("--wibble", environ={"UNMASK_LOG_FORMAT": "json"})
    assert "--wibble" in json.loads(lines[-1])["message"]

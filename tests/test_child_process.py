"""Tests that files in the current directory do not shadow modules in the processes that a server starts."""

import os
import sys
import sysconfig
from pathlib import Path

import psutil
import pytest

from runtime.child_process import module_command
from tests.server.harness import ROOT, serving

pytestmark = pytest.mark.processes

SHADOWED = ("types", "logging", "json", "tokenizers", "msgspec", "numpy", "torch", "zmq", "runtime")
SERVE = ("-P", "-c", "from runtime.cli import main; raise SystemExit(main())", "serve")  # like the script `unmask`
PLUGIN = """
from runtime.algorithms.base import register_algorithm
from runtime.algorithms.threshold import Threshold

@register_algorithm
class Mine(Threshold):
    key = "mine"
"""


@pytest.mark.parametrize("entry", ["", "cwd"])
def test_children_import_from_the_current_directory_only_if_their_parent_does(
    entry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    standard = sysconfig.get_path("stdlib")
    here = os.getcwd() if entry else ""
    monkeypatch.setattr(sys, "path", ["/elsewhere", standard, here])
    assert module_command("a.b") == (sys.executable, "-P", "-m", "a.b")
    monkeypatch.setattr(sys, "path", [here, standard])
    assert module_command("a.b") == (sys.executable, "-m", "a.b")


def test_a_deleted_current_directory_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tmp_path.rmdir()
    monkeypatch.setattr(sys, "path", [sysconfig.get_path("stdlib")])
    assert module_command("a.b") == (sys.executable, "-P", "-m", "a.b")


@pytest.mark.matrix
def test_a_server_runs_in_a_directory_with_files_named_like_modules(tmp_path: Path) -> None:
    """The server has several frontend processes, a plugin with a relative path, and a process for grammars."""
    for name in SHADOWED:
        (tmp_path / f"{name}.py").write_text("raise SystemExit(f'{__file__} replaces a module')\n")
    (tmp_path / "mine.py").write_text(PLUGIN)
    flags = ("--device", "cpu", "--frontend-processes", "2", "--plugin", "mine.py")
    environment = {"PYTHONPATH": str(ROOT)}
    with serving(*flags, program=SERVE, cwd=tmp_path, env=environment) as server, server.client() as client:
        body = {"prompt": "12 + 30 = ", "max_tokens": 8, "decoding": {"algorithm": "mine"}}
        assert client.post("/v1/completions", json=body).status_code == 200
        body = {"prompt": "A number: ", "max_tokens": 8, "structured_outputs": {"regex": "[0-9]{2}"}}
        answer = client.post("/v1/completions", json=body)
        assert answer.status_code == 200, answer.text
        assert answer.json()["choices"][0]["text"].isdigit()
        children = psutil.Process(server.process.pid).children(recursive=True)
        assert any("runtime.structured_output.sandbox_process" in child.cmdline() for child in children)

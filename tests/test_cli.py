"""Tests of the `unmask` command: its subcommands and the arguments that it passes to them."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import runtime
from runtime import cli


def test_version_and_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"unmask {runtime.__version__}\n"
    assert cli.main([]) == cli.main(["--help"]) == 0
    assert cli.main(["sing"]) == 2
    output = capsys.readouterr()
    assert "sing: there is no such command\n" in output.err
    assert cli.main(["serv"]) == 2
    assert "serv: there is no such command; did you mean serve?" in capsys.readouterr().err
    assert all(f"unmask {name}" in output.err for name in cli.COMMANDS)


@pytest.mark.parametrize(
    ("arguments", "passed"),
    [
        ([], []), (["--port", "1"], ["--port", "1"]),
        (["org/name", "--port", "1"], ["--model", "hf://org/name", "--port", "1"]),
        (["org/name@v1"], ["--model", "hf://org/name@v1"]), (["hf://org/name"], ["--model", "hf://org/name"]),
        (["demo://"], ["--model", "demo://"]), (["/models/x"], ["--model", "/models/x"]),
        (["a/b/c"], ["--model", "a/b/c"]),
    ],
)  # fmt: skip
def test_serve_takes_a_model(monkeypatch: pytest.MonkeyPatch, arguments: list[str], passed: list[str]) -> None:
    calls: list[list[str]] = []
    server = SimpleNamespace(main=lambda args: calls.append(args) or 3)
    monkeypatch.setitem(sys.modules, "runtime.server.cli", server)
    assert cli.main(["serve", *arguments]) == 3
    assert calls == [passed]


def test_a_directory_is_no_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "org" / "name").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert cli.model("org/name") == "org/name"
    assert cli.model("org/other") == "hf://org/other"


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_exists(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main([name, "--help"])
    assert ended.value.code == 0
    assert "usage" in capsys.readouterr().out

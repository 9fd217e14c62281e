"""Tests that every tool ends with one sentence and status 1 or 2 for unusual sizes, on a host without a GPU."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from runtime.bench import __main__ as bench
from runtime.bench import sizes
from runtime.errors import ConfigError
from tests.wait import TIMEOUT

ROOT = Path(__file__).parents[2]
TINY = ("--arch", "llada2-tiny")
CPU = ("--device", "cpu")
DRAWN = (*TINY, "--random-weights", *CPU)


@pytest.fixture
def small_host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Makes the tools find 1 MB of available memory."""
    memory = tmp_path / "meminfo"
    memory.write_text("MemTotal: 9999999 kB\nMemAvailable:    1000 kB\n")
    monkeypatch.setattr(sizes, "_MEMORY", memory)


def ended(*arguments: str, **variables: str) -> tuple[int, list[str]]:
    """Runs a tool in a process with these environment variables. Returns its status and the lines that it prints."""
    command = [sys.executable, "-m", "runtime.bench", *arguments]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", **variables}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=TIMEOUT, check=False)
    output = done.stdout + done.stderr
    assert "Traceback" not in output, output
    return done.returncode, output.splitlines()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("ranks", *TINY, *CPU, "--sizes", "0"), "--sizes must be at least 1"),
        (("ranks", *TINY, *CPU, "--batch", "2", "0"), "--batch must be at least 1"),
        (("ranks", *TINY, *CPU, "--steps", "-1"), "--steps must be at least 1"),
        (("ranks", *TINY, *CPU, "--prefill", "8"), "--prefill 8 is less than --context 512"),
        (("ranks", *TINY, *CPU, "--context", "99999999", "--prefill", "99999999"), "--max-model-len"),
        pytest.param(("ranks", *TINY, *CPU, "--sizes", "3", "--context", "32", "--prefill", "64"),
                     "--tensor-parallel-size 3", marks=pytest.mark.matrix),
        pytest.param(("ranks", *TINY, *CPU, "--sizes", "1", "--batch", "300", "--context", "32", "--steps", "2"),
                     "--batch 300: the largest step had 256 of the requests", marks=pytest.mark.matrix),
        (("steps", *DRAWN, "--warmup", "-1"), "--warmup must be at least 0"),
        (("steps", *DRAWN, "--batch", "0"), "--batch must be at least 1"),
        (("generate", *DRAWN, "--batch", "0"), "--batch must be at least 1"),
        (("generate", *DRAWN, "--max-tokens", "99999999"), "--max-model-len"),
        (("host", "--steps", "1"), "--steps must be at least 2"),
        (("host", "--batch", "0"), "--batch must be at least 1"),
        (("host", "--per-step", "0"), "--per-step must be at least 1"),
        (("eval", "--n", "0"), "--n: must be at least 1"),
        (("eval", "--n", "1", "--batch", "0"), "--max-num-reqs: 0"),
        (("sweep", "--n", "0"), "--n: must be at least 1"),
        (("serve", "--clients", "0"), "must be above 0"),
        (("tune", "--rows", "0"), "--rows must be at least 1"),
        (("steps", *DRAWN, "--tensor-parallel-size", "0"), "--tensor-parallel-size must be at least 1"),
        (("steps", *DRAWN, "--live", "--temperature", "-1"), "--temperature -1 must be at least 0"),
        (("steps", *DRAWN, "--live", "--temperature", "nan"), "--temperature nan must be at least 0"),
        (("steps", *DRAWN, "--live", "--top-p", "5"), "--top-p 5 must be from 0 to 1"),
        (("steps", *DRAWN, "--live", "--top-p", "-0.1"), "--top-p -0.1 must be from 0 to 1"),
        (("start", "--runs", "0"), "--runs must be at least 1"),
        (("start", "--clients", "0"), "--clients must be at least 1"),
        (("collectives", "--device", "cuda"), "--device cuda: no GPU is usable: "),
        (("tune",), "tune: no GPU is usable: "),
        (("ceilings",), "ceilings: no GPU is usable: "),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)  # fmt: skip
def test_unusual_sizes_end_with_a_sentence(
    arguments: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert bench.main(list(arguments)) in (1, 2)
    found = capsys.readouterr()
    assert sentence in found.out + found.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("serve", "--rate", "nan"),
        ("serve", "--rate", "-1"),
        ("serve", "--rate", "inf"),
        ("serve", "--timeout", "0"),
        ("serve", "--timeout", "x"),
        ("start", "--period", "-1"),
    ],
    ids=" ".join,
)
def test_seconds_and_rates_are_above_zero(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        bench.main(list(arguments))
    assert f"argument {arguments[1]}: {arguments[2]!r} is not a number above 0" in capsys.readouterr().err


@pytest.mark.usefixtures("small_host")
@pytest.mark.parametrize(
    ("arguments", "subject"),
    [
        (("steps", *DRAWN), "the weights in float32"),
        (("steps", *DRAWN, "--dtype", "bfloat16", "--live"), "the weights in bfloat16"),
        (("ranks", *TINY, *CPU, "--sizes", "1"), "the weights in float32"),
        (("generate", *DRAWN), "the weights in float32"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_weights_that_do_not_fit_are_not_drawn(
    arguments: tuple[str, ...], subject: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench.main(list(arguments)) == 1
    assert f"{subject} take" in (output := capsys.readouterr().out)
    assert "this host has 0.0 GB of memory available; choose a smaller --arch" in output


@pytest.mark.parametrize("tool", bench.COMMON)
def test_help_of_a_tool_with_many_flags_lists_common_ones(tool: str, capsys: pytest.CaptureFixture[str]) -> None:
    listed = []
    for argument in ("--help", "--help-all"):
        with pytest.raises(SystemExit) as end:
            bench.main([tool, argument])
        assert end.value.code == 0
        text = capsys.readouterr().out
        assert "example: python -m runtime.bench" in " ".join(text.split())
        listed.append(set(re.findall(r"^  (?:-h, )?--([a-z0-9-]+)", text, re.MULTILINE)) - {"help", "help-all"})
    assert {f"--{name}" for name in listed[0]} == set(bench.COMMON[tool].split())
    assert listed[0] < listed[1]


def test_an_unknown_flag_of_a_tool_names_a_similar_one(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        bench.main(["serve", "--client", "1", "--request-count", "3"])
    assert end.value.code == 2
    assert "no such flag: --request-count 3; did you mean --requests?" in capsys.readouterr().err


@pytest.mark.usefixtures("small_host")
@pytest.mark.parametrize("tool", ["serve", "start"])
def test_a_shape_that_no_server_has_memory_for_is_refused_before_it_is_started(
    tool: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    flags = ("--arch", "llada2-mini", *(("--random-weights",) if tool == "serve" else ()))
    assert bench.main([tool, *flags]) in (1, 2)
    found = capsys.readouterr()
    assert "--arch llada2-mini: the weights in float32 take 65.0 GB" in (output := found.out + found.err)
    assert "use a machine with a GPU, or choose a smaller --arch" in output
    assert bench.main([tool, *flags, "--server-args", "--device cuda"]) in (1, 2)
    found = capsys.readouterr()
    assert "--server-args --device cuda: no GPU is usable: " in found.out + found.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("steps", *DRAWN, "--batch", "9000000", "--context", "4096", "--prompt"),
        ("ranks", *TINY, *CPU, "--sizes", "1", "--batch", "9000000"),
        ("generate", *DRAWN, "--batch", "9000000"),
    ],
    ids=lambda value: value[0],
)
def test_pages_that_do_not_fit_are_not_allocated(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench.main(list(arguments)) == 1
    assert "the KV pages take" in capsys.readouterr().out


@pytest.mark.matrix
@pytest.mark.usefixtures("small_host")
def test_several_ranks_end_with_the_sentence(tmp_path: Path) -> None:
    # Ranks are separate processes, so the patch must be in a module that Python imports at each start.
    (tmp_path / "sitecustomize.py").write_text(
        f"from pathlib import Path\nfrom runtime.bench import sizes\nsizes._MEMORY = Path({str(sizes._MEMORY)!r})\n"
    )
    path = os.pathsep.join((str(tmp_path), str(ROOT), os.environ.get("PYTHONPATH", "")))
    status, output = ended("ranks", *TINY, *CPU, "--sizes", "2", "--batch", "1", PYTHONPATH=path)
    assert status == 1
    assert output[-1].startswith("error: the weights in float32 take ")
    assert "this host has 0.0 GB of memory available" in output[-1]


def test_a_large_model_is_announced(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes, "NOTED", 0.0)
    assert bench.main(["steps", *DRAWN, "--batch", "1", "--context", "32", "--prompt", "--repeats", "1"]) == 0
    assert capsys.readouterr().err.startswith("creating 0.0 GB of random weights")


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (MemoryError(), "error: out of memory: choose smaller sizes (MemoryError)"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried\nmore"), "error: out of memory: "),
        (OSError(28, "No space left on device"), "error: [Errno 28] No space left on device"),
        (ConfigError("--batch: too large"), "error: --batch: too large"),
    ],
)
def test_errors_of_allocators_and_files_are_sentences(
    error: Exception, sentence: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(args: Any) -> int:
        raise error

    monkeypatch.setattr("runtime.bench.tune.main", fail)
    assert bench.main(["tune", "--arch", "llada2-mini"]) == 1
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(sentence)


def test_other_errors_stay_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(args: Any) -> int:
        raise RuntimeError("a bug")

    monkeypatch.setattr("runtime.bench.tune.main", fail)
    with pytest.raises(RuntimeError, match="a bug"):
        bench.main(["tune", "--arch", "llada2-mini"])

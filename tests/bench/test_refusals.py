"""Tests that every tool refuses unusual arguments and sizes with one sentence, on a host without a GPU."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from runtime.bench import __main__ as bench
from runtime.bench import sizes, warm
from runtime.engine import fit
from runtime.errors import ConfigError
from tests.wait import TIMEOUT
from tools.bench.__main__ import TOOLS as DEVELOPER_TOOLS

ROOT = Path(__file__).parents[2]
TINY = "--arch llada2-tiny --device cpu"
STEPS = f"steps {TINY} --random-weights"
NOISY = "steps --arch diffusiongemma-tiny --device cpu --random-weights"
GENERATE = f"generate {TINY} --random-weights"
RANKS = f"ranks {TINY}"


def main(line: str) -> int:
    """Runs a command of `runtime.bench` or `tools.bench`, with all after --server-args as one argument."""
    line, flag, server_args = line.partition(" --server-args ")
    arguments = [*line.split(), *([flag.strip(), server_args] if flag else [])]
    if arguments[0] in DEVELOPER_TOOLS:
        return bench.run("tools.bench", DEVELOPER_TOOLS, arguments)
    return bench.main(arguments)


def refused(line: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Returns the output of a command that fails."""
    try:
        status = main(line)
    except SystemExit as end:
        status = end.code
    assert status in (1, 2)
    return "".join(capsys.readouterr())


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.chdir(tmp_path)
    for name in ("TRITON_CACHE_DIR", "TRITON_STORE_BINARY_ONLY"):  # `warm` sets them for its process
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


@pytest.fixture
def small_host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Makes the tools find 1 MB of available memory."""
    memory = tmp_path / "meminfo"
    memory.write_text("MemTotal: 9999999 kB\nMemAvailable:    1000 kB\n")
    monkeypatch.setattr(fit, "_MEMORY", memory)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("nothing", "invalid choice: 'nothing'"),
        # steps
        ("steps --arch llada2-tiny", "--random-weights"), ("steps --random-weights", "--arch NAME"),
        ("steps --arch nope --random-weights", "llada2-mini"), (f"{STEPS} --context 33", "multiple of --block-size 32"),
        (f"{STEPS} --prompt 33", "--prompt must be a multiple of --block-size 32"),
        (f"{STEPS} --batch 0", "--batch must be at least 1"),
        (f"{STEPS} --block-size 0", "--block-size must be at least 1"),
        (f"{STEPS} --tensor-parallel-size 0", "--tensor-parallel-size must be at least 1"),
        (f"{STEPS} --warmup -1", "--warmup must be at least 0"), (f"{STEPS} --filled 1", "--filled 1.0 must be"),
        pytest.param(f"{NOISY} --filled 0.5", "--filled 0.5 has no effect", id="diffusion_gemma"),
        (f"{STEPS} --graphs", "--graphs needs a GPU, and --device is cpu"),
        (f"{STEPS} --attn-impl triton", "needs a CUDA device"),
        (f"{STEPS} --live --temperature -1", "--temperature -1 must be at least 0"),
        (f"{STEPS} --live --temperature nan", "--temperature nan must be at least 0"),
        (f"{STEPS} --live --top-p 5", "--top-p 5 must be from 0 to 1"),
        (f"{STEPS} --live --top-p -0.1", "--top-p -0.1 must be from 0 to 1"),
        (f"{STEPS} --batch 9000000 --context 4096 --prompt", "the KV pages take"),
        ("steps --json none/figures.json", "the directory of 'none/figures.json' does not exist; create it"),
        ("steps --json .", "'.' is a directory"),
        # generate, eval and sweep; test_accuracy.py has more of the last two
        ("generate --arch llada2-tiny", "--random-weights"), ("generate --arch nope --random-weights", "llada2-mini"),
        (f"{GENERATE} --batch 0", "--batch must be at least 1"),
        (f"{GENERATE} --rounds 0", "--rounds must be at least 1"),
        (f"{GENERATE} --max-tokens 99999999", "--max-model-len"), (f"{GENERATE} --batch 9000000", "the KV pages take"),
        ("eval --n 1 --batch 0", "--max-num-reqs: 0"),
        ("eval --json none/figures.json", "does not exist; create it"),
        ("sweep --json .", "is a directory"),
        ("sweep --plot none/picture.png", "does not exist; create it"),
        ("sweep --plot picture.jpg", "'picture.jpg' must end in .png"),
        # serve and start
        ("serve --arch llada2-tiny", "--arch and --random-weights: give both"),
        ("serve --arch llada2-tiny --random-weights --url http://here:1", "--arch cannot be combined with --url"),
        ("serve --clients 0", "must be above 0"), ("serve --requests 0", "must be above 0"),
        ("serve --rounds 0", "must be above 0"),
        ("serve --rate nan", "argument --rate: 'nan' is not a number above 0"),
        ("serve --rate -1", "argument --rate: '-1' is not a number above 0"),
        ("serve --rate inf", "argument --rate: 'inf' is not a number above 0"),
        ("serve --timeout 0", "argument --timeout: '0' is not a number above 0"),
        ("serve --timeout x", "argument --timeout: 'x' is not a number above 0"),
        ("serve --url localhost:8000", "--url"),
        ("serve --processes 0", "--processes: must be between 1 and 1, the lowest of --clients"),
        ("serve --processes 2", "--processes: must be between 1 and 1, the lowest of --clients"),
        ("serve --processes 3 --clients 4 2", "--processes: must be between 1 and 2, the lowest of --clients"),
        ("serve --plot picture.jpg", "'picture.jpg' must end in .png"),
        ("serve --json .", "is a directory"),
        ("serve --client 1 --request-count 3", "no such flag: --request-count 3; did you mean --requests?"),
        ("start --arch llada2-tiny --model checkpoint", "leave out --model"),
        ("start --arch nope", "llada2-mini"), ("start --runs 0", "--runs must be at least 1"),
        ("start --clients 0", "--clients must be at least 1"),
        ("start --period -1", "argument --period: '-1' is not a number above 0"),
        # warm, tune and ceilings
        ("warm --cache c", "give one of --model, --arch and --specializations"),
        ("warm --cache c --model a --arch llada2-mini", "give one of"),
        ("warm --cache c --specializations absent.json --record other.json", "leave out --specializations"),
        ("warm --cache c --specializations absent.json", "absent.json: not a file of specializations"),
        ("warm --cache c --specializations old.json", "recorded by another version"),
        ("tune", "tune: no GPU is usable: "), ("tune --rows 0", "--rows must be at least 1"),
        ("ceilings", "ceilings: no GPU is usable: "),
        ("ceilings --seconds 0", "--seconds 0 must be more than 0"),
        # of developers; tests/tools/test_bench.py has more
        (f"{RANKS} --sizes 0", "--sizes must be at least 1"), (f"{RANKS} --batch 2 0", "--batch must be at least 1"),
        (f"{RANKS} --steps -1", "--steps must be at least 1"),
        (f"{RANKS} --prefill 8", "--prefill 8 is less than --context 512"),
        (f"{RANKS} --context 99999999 --prefill 99999999", "--max-model-len"),
        (f"{RANKS} --sizes 1 --batch 9000000", "the KV pages take"),
        pytest.param(f"{RANKS} --sizes 3 --context 32 --prefill 64", "--tensor-parallel-size 3",
                     marks=pytest.mark.matrix),
        ("collectives --device cuda", "--device cuda: no GPU is usable: "),
        ("host --steps 1", "--steps must be at least 2"), ("host --batch 0", "--batch must be at least 1"),
        ("host --per-step 0", "--per-step must be at least 1"),
    ],
)  # fmt: skip
def test_unusual_arguments_end_with_a_sentence(
    line: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = {"format": warm.FORMAT, "version": "0.0.0", "specializations": []}
    (tmp_path / "old.json").write_text(json.dumps(old))
    assert message in refused(line, capsys)


@pytest.mark.usefixtures("small_host")
@pytest.mark.parametrize(
    ("line", "messages"),
    [
        (STEPS, ("the weights in float32 take", "this host has 0.0 GB of memory available; choose a smaller --arch")),
        (f"{STEPS} --dtype bfloat16 --live", ("the weights in bfloat16 take",)),
        (GENERATE, ("the weights in float32 take",)),
        (f"{RANKS} --sizes 1", ("the weights in float32 take",)),
        *(
            (line, ("--arch llada2-mini: the weights in float32 take 65.0 GB",
                    "use a machine with a GPU, or choose a smaller --arch"))
            for line in ("start --arch llada2-mini", "serve --arch llada2-mini --random-weights")
        ),
        *((f"{line} --server-args --device cuda", ("--server-args --device cuda: no GPU is usable: ",))
          for line in ("start --arch llada2-mini", "serve --arch llada2-mini --random-weights")),
    ],
)  # fmt: skip
def test_weights_that_do_not_fit_are_not_created(
    line: str, messages: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    output = refused(line, capsys)
    assert all(message in output for message in messages)


@pytest.mark.matrix
@pytest.mark.usefixtures("small_host")
def test_several_ranks_end_with_the_sentence(tmp_path: Path) -> None:
    # Ranks are separate processes, so the patch must be in a module that Python imports at each start.
    (tmp_path / "sitecustomize.py").write_text(
        f"from pathlib import Path\nfrom runtime.engine import fit\nfit._MEMORY = Path({str(fit._MEMORY)!r})\n"
    )
    path = os.pathsep.join((str(tmp_path), str(ROOT), os.environ.get("PYTHONPATH", "")))
    command = [sys.executable, "-m", "tools.bench", *f"{RANKS} --sizes 2 --batch 1".split()]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": path}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=TIMEOUT, check=False)
    output = done.stdout + done.stderr
    assert done.returncode == 1
    assert "Traceback" not in output, output
    last = output.splitlines()[-1]
    assert last.startswith("error: the weights in float32 take ")
    assert "this host has 0.0 GB of memory available" in last


def test_a_large_model_is_announced(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes, "NOTED", 0.0)
    assert main(f"{STEPS} --batch 1 --context 32 --prompt --repeats 1") == 0
    assert capsys.readouterr().err.startswith("creating 0.0 GB of random weights")


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


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (MemoryError(), "error: out of memory: choose smaller sizes (MemoryError)"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried\nmore"), "error: out of memory: "),
        (OSError(28, "No space left on device"), "error: [Errno 28] No space left on device"),
        (ConfigError("--batch: too large"), "error: --batch: too large"),
        (RuntimeError("a bug"), None),
    ],
)
def test_errors_of_allocators_and_files_are_sentences_and_others_stay_errors(
    error: Exception, sentence: str | None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(args: Any) -> int:
        raise error

    monkeypatch.setattr("runtime.bench.tune.main", fail)
    if sentence is None:
        with pytest.raises(RuntimeError, match="a bug"):
            main("tune")
        return
    assert main("tune") == 1
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(sentence)

"""Tests that a start on the GPU compiles kernels in parallel, and that the next start finds all of them cached."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.golden import GOLDEN

pytestmark = pytest.mark.gpu

START = """
import json, logging, sys
from triton import knobs
from runtime import LLM

logging.basicConfig(level="INFO", stream=sys.stderr)
compiled = {True: 0, False: 0}


def listen(*, cache_hit, **_):
    compiled[cache_hit] += 1


with LLM(sys.argv[1], device="cuda", dtype="bfloat16", skip_tokenizer=True, max_num_reqs=16) as llm:
    knobs.compilation.listener = listen
    llm.generate([[5, 6, 7]] * 3)
print(json.dumps(compiled[False]))
"""


def start(cache: Path, folder: str) -> tuple[str, str]:
    """Returns the log, and the number of kernels that the first requests compiled."""
    command = [sys.executable, "-c", START, str(GOLDEN / folder)]
    environment = {"TRITON_CACHE_DIR": str(cache)}
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stderr, done.stdout.strip()


@pytest.mark.parametrize("folder", ["llada2_tiny", "diffusion_gemma", "llada"])
def test_the_next_start_finds_all_kernels(folder: str, tmp_path: Path) -> None:
    log, _ = start(tmp_path, folder)
    assert "Compiled " in log
    assert "one after the other" not in log
    assert "was not compiled in parallel" not in log
    log, later = start(tmp_path, folder)
    assert ":All kernels are in the cache" in log
    assert "Compiled " not in log
    assert later == "0"

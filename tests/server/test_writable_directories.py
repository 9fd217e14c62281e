"""Tests that a server without a temporary directory ends with one sentence, and one without a home directory serves."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.server.harness import ROOT, serving

NO_TEMPORARY_DIRECTORY = (
    "import runpy, tempfile\n"
    "tempfile._candidate_tempdir_list = lambda: []\n"  # as if none of them could be written
    "runpy.run_module('runtime.server', run_name='__main__', alter_sys=True)\n"
)


def test_a_server_without_a_temporary_directory_ends_with_one_sentence(checkpoint: Path) -> None:
    arguments = ["--host", "127.0.0.1", "--port", "0", "--model", str(checkpoint), "--log-level", "error"]
    done = subprocess.run(
        [sys.executable, "-c", NO_TEMPORARY_DIRECTORY, *arguments], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    sentence = done.stderr.strip().splitlines()[-1]
    assert "the directory for temporary files cannot be used: No usable temporary directory" in sentence
    assert "set TMPDIR to one that can be written" in sentence


@pytest.mark.matrix
def test_a_server_without_a_home_directory_serves(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "home").write_text("a file where the home directory belongs")
    env = dict.fromkeys(("HOME", "XDG_CACHE_HOME", "HF_HOME"), str(tmp_path / "home"))
    flags = ("--model", str(checkpoint), "--served-model-name", "tiny")
    with serving(*flags, env=os.environ | env) as server, server.client() as client:
        answer = client.post("/v1/completions", json={"model": "tiny", "prompt": "a", "max_tokens": 4})
        assert answer.status_code == 200

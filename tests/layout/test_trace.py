"""Tests of the tool that prints the calls of one step or request."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("what", "file"), [("step", "runtime/engine/engine.py"), ("request", "runtime/server/openai/chat.py")]
)
def test_the_calls_are_printed_below_their_files(what, file):
    # in a separate process, because the server configures its process
    done = subprocess.run([sys.executable, "-m", "tools.trace", what], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"\n{file}\n    " in f"\n{done.stdout}"

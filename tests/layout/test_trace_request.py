"""Tests that a streamed chat passes few files of the server with few switches between them, so that it is readable."""

from __future__ import annotations

import subprocess
import sys


def test_one_streamed_chat_passes_few_files():
    # In a separate process, because the server configures its process.
    traced = subprocess.run([sys.executable, "-m", "tools.trace_request"], capture_output=True, text=True, check=False)
    assert traced.returncode == 0, traced.stdout + traced.stderr
    assert "runtime/server/openai/chat.py" in traced.stdout

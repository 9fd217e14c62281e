"""A streamed chat stays readable: it passes few files of the front end, in few pieces."""

from __future__ import annotations

import subprocess
import sys


def test_one_streamed_chat_passes_few_files():
    # a process of its own, as the server configures its process
    traced = subprocess.run([sys.executable, "-m", "tools.trace_request"], capture_output=True, text=True, check=False)
    assert traced.returncode == 0, traced.stdout + traced.stderr
    assert "runtime/server/openai/chat.py" in traced.stdout

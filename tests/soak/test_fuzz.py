"""The soak run as a test; by name only: ``pytest -m slow tests/soak``."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.server.harness import ROOT


@pytest.mark.slow
@pytest.mark.timeout(4000)
def test_ten_thousand_requests_lose_nothing_and_leave_nothing() -> None:
    done = subprocess.run([sys.executable, "-m", "tests.soak.fuzz"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr

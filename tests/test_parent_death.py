"""Test that a process ends with its parent even if it cannot run any Python code."""

import subprocess
import sys

import psutil
import pytest

from tests.wait import wait_until

# The call of the C library holds the GIL, so no thread and no signal handler runs.
CHILD = """
import ctypes
from runtime.child_process import exit_with_parent
exit_with_parent()
print("holds the lock", flush=True)
ctypes.PyDLL(None).sleep(600)
"""
PARENT = f"""
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", {CHILD!r}])
print(child.pid, flush=True)
child.wait()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the signal is Linux's")
def test_a_process_that_holds_the_interpreters_lock_ends_with_its_parent() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        child = psutil.Process(int(parent.stdout.readline()))
        assert parent.stdout.readline() == "holds the lock\n"
        assert child.is_running()
        parent.kill()
        wait_until(
            lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE, ignore=psutil.NoSuchProcess
        )

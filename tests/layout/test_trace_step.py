"""Tests that a denoising step passes few files of the host code with few switches, so that it is readable."""

from __future__ import annotations

from tools.call_trace import Trace
from tools.trace_step import MAX_FILES, MAX_SWITCHES, trace_step


def test_one_step_passes_few_files():
    trace = trace_step()
    assert "runtime/engine/engine.py" in trace.files
    assert len(trace.files) <= MAX_FILES, trace.files
    assert trace.num_switches <= MAX_SWITCHES, trace.listing()


def test_a_switch_is_a_call_in_another_file():
    trace = Trace([("a.py", "f"), ("a.py", "g"), ("b.py", "h"), ("a.py", "f")])
    assert (trace.files, trace.num_functions, trace.num_switches) == (["a.py", "b.py"], 3, 2)
    assert trace.listing().splitlines() == ["a.py", "    f", "    g", "b.py", "    h", "a.py", "    f"]

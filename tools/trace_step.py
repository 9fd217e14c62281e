"""Traces one denoising step of one request on the host, and counts files, functions and switches between files.

`python -m tools.trace_step` runs the demo checkpoint on the CPU and prints the functions of the step in the order of
their calls. Models, layers and kernels are left out, with all that they call.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from tools.call_trace import Trace, run_tool

LEFT_OUT = ("runtime/models/", "runtime/layers/", "runtime/kernels/")
MAX_FILES = 16
MAX_SWITCHES = 40
STEPS_BEFORE = 4  # of the block, so that the batch has its layout already


def trace_step() -> Trace:
    """Returns the trace of a step in the middle of a block."""
    from runtime import LLM
    from runtime.request.engine_messages import RequestSpec

    trace = Trace(left_out=LEFT_OUT)
    with LLM(device="cpu", skip_tokenizer=True) as llm:
        engine = llm.engine
        spec = RequestSpec(id="0", prompt=[5, 6, 7], max_tokens=64, ignore_eos=True, decoding=engine.info.defaults())
        engine.add(spec)
        for _ in range(STEPS_BEFORE):
            engine.step()
        sys.setprofile(trace.record)
        try:
            engine.step()
        finally:
            sys.setprofile(None)
    return trace


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the trace. Returns the exit code, which is 1 above `MAX_FILES` or `MAX_SWITCHES`."""
    limits = MAX_FILES, MAX_SWITCHES
    return run_tool("tools.trace_step", "traces one denoising step", trace_step, limits, arguments)


if __name__ == "__main__":
    sys.exit(main())

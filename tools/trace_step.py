"""Traces one denoising step of one request on the host, and counts files, functions and switches between files.

`python -m tools.trace_step` runs the demo checkpoint on the CPU and prints the functions of the step in the order of
their calls. Models, layers and kernels are left out, with all that they call. A switch is a call of a function in
another file than the function that was called before.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).parents[1]
LEFT_OUT = ("runtime/models/", "runtime/layers/", "runtime/kernels/")
MAX_FILES = 16
MAX_SWITCHES = 40
STEPS_BEFORE = 4  # of the block, so that the batch has its layout already


@dataclass
class Trace:
    """The calls of a step.

    Attributes:
        calls: file and function of each call, in order.
    """

    calls: list[tuple[str, str]] = field(default_factory=list)
    _depth_left_out: int = 0

    def record(self, frame: FrameType, event: str, _: Any) -> None:
        """Records a call; see ``sys.setprofile``."""
        if event not in ("call", "return"):
            return
        file = _file_of(frame)
        if file.startswith(LEFT_OUT):
            self._depth_left_out += 1 if event == "call" else -1
        elif event == "call" and file.startswith("runtime/") and not self._depth_left_out:
            self.calls.append((file, frame.f_code.co_qualname))

    @property
    def files(self) -> list[str]:
        return sorted({file for file, _ in self.calls})

    @property
    def num_functions(self) -> int:
        return len(set(self.calls))

    @property
    def num_switches(self) -> int:
        return sum(one != other for (one, _), (other, _) in zip(self.calls, self.calls[1:], strict=False))

    def listing(self) -> str:
        """Returns the calls, one per line, with the file where it changes."""
        rows, before = [], ""
        for file, function in self.calls:
            rows += [file] if file != before else []
            rows.append(f"    {function}")
            before = file
        return "\n".join(rows)


def _file_of(frame: FrameType) -> str:
    """Returns the file of a function, relative to the repository; "" for files outside it."""
    path = Path(frame.f_code.co_filename)
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else ""


def trace_step() -> Trace:
    """Returns the trace of a step in the middle of a block."""
    from runtime import LLM
    from runtime.request.engine_messages import RequestSpec

    trace = Trace()
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
    """Prints the trace; the exit code is 1 above `MAX_FILES` or `MAX_SWITCHES`."""
    parser = argparse.ArgumentParser(prog="python -m tools.trace_step", description="traces one denoising step")
    parser.add_argument("--quiet", action="store_true", help="print only the counts")
    quiet = parser.parse_args(arguments).quiet
    trace = trace_step()
    if not quiet:
        print(trace.listing())
    print(
        f"{len(trace.files)} files (at most {MAX_FILES}), {trace.num_functions} functions, "
        f"{trace.num_switches} switches between files (at most {MAX_SWITCHES})"
    )
    return int(len(trace.files) > MAX_FILES or trace.num_switches > MAX_SWITCHES)


if __name__ == "__main__":
    sys.exit(main())

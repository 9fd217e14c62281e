"""Records the calls of this repository's functions in one thread, and counts files and switches between files.

A switch is a call of a function in another file than the function that was called before. A coroutine that continues
counts as a call.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).parents[1]


@dataclass
class Trace:
    """Calls of functions in `runtime/`.

    Attributes:
        calls: file and function of each call, in order.
        left_out: beginnings of paths whose functions are not recorded, with all that they call.
        left_out_functions: names of further functions that are not recorded, with all that they call.
        active: whether calls are recorded.
    """

    calls: list[tuple[str, str]] = field(default_factory=list)
    left_out: tuple[str, ...] = ()
    left_out_functions: frozenset[str] = frozenset()
    active: bool = True
    _depth_left_out: int = 0

    def record(self, frame: FrameType, event: str, _: Any) -> None:
        """Records a call; see ``sys.setprofile``."""
        if not self.active or event not in ("call", "return"):
            return
        file = _file_of(frame)
        if not file.startswith("runtime/"):
            return
        if file.startswith(self.left_out) or frame.f_code.co_name in self.left_out_functions:
            # a function may return that was called before the trace became active
            self._depth_left_out = max(self._depth_left_out + (1 if event == "call" else -1), 0)
        elif event == "call" and not self._depth_left_out:
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
    root, path = f"{ROOT}/", frame.f_code.co_filename
    return path.removeprefix(root) if path.startswith(root) else ""


def run_tool(
    name: str,
    description: str,
    make_trace: Callable[[], Trace],
    limits: tuple[int, int],
    arguments: Sequence[str] | None = None,
) -> int:
    """Prints a trace.

    Args:
        name: module of the tool.
        description: for ``--help``.
        make_trace: records the trace.
        limits: largest number of files, and of switches.
        arguments: command line; None for that of the process.

    Returns:
        The exit code: 1 above a limit.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {name}", description=description)
    parser.add_argument("--quiet", action="store_true", help="print only the counts")
    quiet = parser.parse_args(arguments).quiet
    trace = make_trace()
    if not quiet:
        print(trace.listing())
    max_files, max_switches = limits
    print(
        f"{len(trace.files)} files (at most {max_files}), {trace.num_functions} functions, "
        f"{trace.num_switches} switches between files (at most {max_switches})"
    )
    return int(len(trace.files) > max_files or trace.num_switches > max_switches)

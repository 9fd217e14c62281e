"""`python -m runtime.bench ceilings`: peak rates of GEMMs and reads of memory and L2, from the first milliseconds on.

`roofline.py` uses these rates. A device with a power limit lowers its clock under load, and does not sustain its first
rate. The GEMM multiplies random numbers, because its power draw depends on the values. Each kind of work begins after a
pause.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from runtime.bench import output
from runtime.distributed.gpu import require_gpu
from runtime.errors import ConfigError
from runtime.kernels.common import tl, triton

SIDE = 8192  # of the matrices
NUMBERS = 1 << 31  # four-byte integers to read
BLOCK = 4096  # integers per load
BLOCKS = 64  # consecutive loads per program: 1 MiB
EDGES = (0, 10, 50, 200, 500)  # borders of the windows in milliseconds; later borders double
COPIED_BYTES = 1 << 29  # per copy of `measure_rates`
COPIED_SIDE = 4096  # of its matrices
RATE_SECONDS = 0.05  # of each kind of its work
PAUSE = 0.5  # seconds without work, after which a device is cool again
MAX_IN_FLIGHT = 16  # launches before the host waits for the first of them


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=0.5, help="seconds per kind of work; default: 0.5")
    output.add_json(parser)


def main(args: argparse.Namespace) -> int:
    if args.seconds <= 0:
        raise ConfigError(f"--seconds {args.seconds:g} must be more than 0")
    require_gpu("ceilings")
    setup = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "seconds": args.seconds}
    print(json.dumps(setup))
    between = windows(args.seconds)
    multiplied = rates(_ends(_matmul(SIDE), args.seconds), 2 * SIDE**3 / 1e12, between)
    read = rates(_ends(_reading(), args.seconds), 4 * NUMBERS / 1e12, between)
    cached = _cached_reads(args.seconds, between)
    rows = [
        {"from_ms": window[0], "to_ms": window[1], "tflops": tflops, "tbs": tbs, "l2_tbs": l2_tbs}
        for window, tflops, tbs, l2_tbs in zip(between, multiplied, read, cached, strict=True)
    ]
    if args.json:
        args.json.write_text(json.dumps({"setup": setup, "results": rows}, indent=1) + "\n")
    print(table(rows))
    return 0


def measure_rates(device: torch.device) -> tuple[float, float]:
    """Measures the rates of a bfloat16 GEMM and of a copy on a cool device. Takes 1 GiB of its memory.

    Returns:
        10^12 operations per second of the GEMM, and 10^12 bytes per second that the copy reads and writes.
    """
    with torch.cuda.device(device):
        multiplied = _ends(_matmul(COPIED_SIDE), RATE_SECONDS)
        copied = _ends(_copying(), RATE_SECONDS)
    tflops, tbs = 2 * COPIED_SIDE**3 / 1e12, 2 * COPIED_BYTES / 1e12
    return 1e3 * tflops * len(multiplied) / multiplied[-1], 1e3 * tbs * len(copied) / copied[-1]


def windows(seconds: float) -> list[tuple[float, float]]:
    """Returns the windows as start and end in milliseconds, up to `seconds`."""
    edges, end = [float(edge) for edge in EDGES], 1e3 * seconds
    while edges[-1] < end:
        edges.append(2 * edges[-1])
    return list(itertools.pairwise([*(edge for edge in edges if edge < end), end]))


def rates(ends: Sequence[float], work: float, between: Sequence[tuple[float, float]]) -> list[float | None]:
    """Returns the work per second in each window, from the launches that ended in it; None if none did.

    Args:
        ends: end of each of consecutive launches, in milliseconds from the start of the first.
        work: amount of work per launch.
        between: start and end of each window, in milliseconds.
    """
    pieces = list(itertools.pairwise([0.0, *ends]))
    found: list[float | None] = []
    for low, high in between:
        took = [end - begin for begin, end in pieces if low < end <= high]
        found.append(1e3 * work * len(took) / sum(took) if took else None)
    return found


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Returns a table with one line per window."""
    columns = {"tflops": ("TFLOP/s", 10, 1), "tbs": ("TB/s", 8, 2), "l2_tbs": ("L2 TB/s", 10, 2)}
    lines = ["".join([f"{'ms':>12}", *(f"{title:>{width}}" for title, width, _ in columns.values())])]
    for row in rows:
        window = f"{row['from_ms']:g}-{row['to_ms']:g}"
        cells = [
            f"{'-' if row[name] is None else f'{row[name]:.{digits}f}':>{width}}"
            for name, (_, width, digits) in columns.items()
        ]
        lines.append("".join([f"{window:>12}", *cells]))
    return "\n".join(lines)


def _cached_reads(seconds: float, between: Sequence[tuple[float, float]]) -> list[float | None]:
    """Returns 10^12 bytes per second that reach the multiprocessors from L2; None on GPUs other than Hopper."""
    if torch.cuda.get_device_capability()[0] != 9:
        return [None] * len(between)
    from runtime.bench.l2_reads import l2_reads

    launch, nbytes = l2_reads(torch.device("cuda", torch.cuda.current_device()))
    return rates(_ends(launch, seconds), nbytes / 1e12, between)


def _ends(launch: Callable[[int], None], seconds: float) -> list[float]:
    """Launches work for `seconds`. Returns milliseconds from the start of the first launch to the end of each.

    Args:
        launch: called with the number of the launch.
        seconds: how long to launch.
    """
    launch(0)  # compiles kernels and initializes libraries
    torch.cuda.synchronize()
    time.sleep(PAUSE)
    begin = _now()
    ends: list[torch.cuda.Event] = []
    while len(ends) < MAX_IN_FLIGHT or _elapsed(begin, ends[-MAX_IN_FLIGHT]) < 1e3 * seconds:
        launch(len(ends))
        ends.append(_now())
    return [_elapsed(begin, end) for end in ends]


def _now() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


def _elapsed(begin: torch.cuda.Event, end: torch.cuda.Event) -> float:
    """Returns milliseconds between two events. Waits for `end`."""
    end.synchronize()
    return float(begin.elapsed_time(end))


def _matmul(side: int) -> Callable[[int], None]:
    """Returns a launcher of GEMMs that alternates between two left operands, so that consecutive GEMMs differ."""
    left, other, right, out = (torch.randn(side, side, dtype=torch.bfloat16, device="cuda") for _ in range(4))

    def launch(n: int) -> None:
        torch.mm((left, other)[n % 2], right.t(), out=out)

    return launch


def _copying() -> Callable[[int], None]:
    source, target = (torch.zeros(COPIED_BYTES, dtype=torch.uint8, device="cuda") for _ in range(2))

    def launch(_: int) -> None:
        target.copy_(source)

    return launch


@triton.jit
def _read(numbers_ptr, out_ptr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr):
    """Each program reads BLOCKS consecutive blocks."""
    first = tl.program_id(0).to(tl.int64) * BLOCKS
    acc = tl.zeros([BLOCK], tl.int32)
    for n in range(BLOCKS):
        acc |= tl.load(numbers_ptr + (first + n) * BLOCK + tl.arange(0, BLOCK))
    if tl.max(acc) == 1:  # never with random numbers; it keeps the compiler from removing the loads
        tl.store(out_ptr, 1)


def _reading() -> Callable[[int], None]:
    numbers = torch.randint(-(1 << 31), (1 << 31) - 1, (NUMBERS,), dtype=torch.int32, device="cuda")
    out = torch.zeros(1, dtype=torch.int32, device="cuda")
    programs = NUMBERS // (BLOCK * BLOCKS)

    def launch(n: int) -> None:
        _read[(programs,)](numbers, out, BLOCK, BLOCKS, num_warps=4)

    return launch

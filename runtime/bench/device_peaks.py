"""`python -m runtime.bench ceilings`: how fast this device multiplies and reads, from the first milliseconds on.

`roofline.py` uses these rates. A device with a power limit lowers its clock under load, and
does not hold what it reaches at first. The product is of random numbers, for the power that it takes depends on them.
Either kind of work begins after a pause.
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
NUMBERS = 1 << 31  # of four bytes, that are read
BLOCK = 4096  # of these at a time
BLOCKS = 64  # one after the other by each program: 1 MiB
EDGES = (0, 10, 50, 200, 500)  # milliseconds between which a rate is printed; then doubled each time
COPIED_BYTES = 1 << 29  # by one copy of `measure_rates`
COPIED_SIDE = 4096  # of its matrices
RATE_SECONDS = 0.05  # of either kind of its work
PAUSE = 0.5  # seconds without work, before which a device is cool again
MAX_IN_FLIGHT = 16  # pieces of work that the host launches before it waits for the first of them


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=0.5, help="of each kind of work; default: .5")
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
    rows = [
        {"from_ms": window[0], "to_ms": window[1], "tflops": tflops, "tbs": tbs}
        for window, tflops, tbs in zip(between, multiplied, read, strict=True)
    ]
    if args.json:
        args.json.write_text(json.dumps({"setup": setup, "results": rows}, indent=1) + "\n")
    print(table(rows))
    return 0


def measure_rates(device: torch.device) -> tuple[float, float]:
    """Returns 10^12 operations per second of a GEMM in bfloat16, and 10^12 bytes per second that a copy reads and
    writes. Both are those of a cool device, and take 1 GiB of its memory.
    """
    with torch.cuda.device(device):
        multiplied = _ends(_matmul(COPIED_SIDE), RATE_SECONDS)
        copied = _ends(_copying(), RATE_SECONDS)
    tflops, tbs = 2 * COPIED_SIDE**3 / 1e12, 2 * COPIED_BYTES / 1e12
    return 1e3 * tflops * len(multiplied) / multiplied[-1], 1e3 * tbs * len(copied) / copied[-1]


def windows(seconds: float) -> list[tuple[float, float]]:
    """Milliseconds from and to, up to `seconds`."""
    edges, end = [float(edge) for edge in EDGES], 1e3 * seconds
    while edges[-1] < end:
        edges.append(2 * edges[-1])
    return list(itertools.pairwise([*(edge for edge in edges if edge < end), end]))


def rates(ends: Sequence[float], work: float, between: Sequence[tuple[float, float]]) -> list[float | None]:
    """`work` a second in each window, by the pieces of so much work that ended in it. None: none did.

    Args:
        ends: milliseconds at which pieces that follow each other ended, from the first one's beginning on.
    """
    pieces = list(itertools.pairwise([0.0, *ends]))
    found: list[float | None] = []
    for low, high in between:
        took = [end - begin for begin, end in pieces if low < end <= high]
        found.append(1e3 * work * len(took) / sum(took) if took else None)
    return found


def table(rows: Sequence[dict[str, Any]]) -> str:
    """A line for each window."""
    lines = [f"{'ms':>12}{'TFLOP/s':>10}{'TB/s':>8}"]
    for row in rows:
        tflops, tbs = ("-" if row[name] is None else f"{row[name]:.{n}f}" for name, n in (("tflops", 1), ("tbs", 2)))
        window = f"{row['from_ms']:g}-{row['to_ms']:g}"
        lines.append(f"{window:>12}{tflops:>10}{tbs:>8}")
    return "\n".join(lines)


def _ends(launch: Callable[[int], None], seconds: float) -> list[float]:
    """Of pieces of work that go on for `seconds`: milliseconds from the first one's beginning to the end of each.
    `launch(n)` launches the n-th one."""
    launch(0)  # what is made at the first time is made now
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
    """Milliseconds; waits for the end."""
    end.synchronize()
    return float(begin.elapsed_time(end))


def _matmul(side: int) -> Callable[[int], None]:
    """Two left operands take turns, so that no product is the one before it again."""
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
    """One program: BLOCKS blocks that follow each other."""
    first = tl.program_id(0).to(tl.int64) * BLOCKS
    acc = tl.zeros([BLOCK], tl.int32)
    for n in range(BLOCKS):
        acc |= tl.load(numbers_ptr + (first + n) * BLOCK + tl.arange(0, BLOCK))
    if tl.max(acc) == 1:  # never, of random numbers; but then they have to be read
        tl.store(out_ptr, 1)


def _reading() -> Callable[[int], None]:
    numbers = torch.randint(-(1 << 31), (1 << 31) - 1, (NUMBERS,), dtype=torch.int32, device="cuda")
    out = torch.zeros(1, dtype=torch.int32, device="cuda")
    programs = NUMBERS // (BLOCK * BLOCKS)

    def launch(n: int) -> None:
        _read[(programs,)](numbers, out, BLOCK, BLOCKS, num_warps=4)

    return launch

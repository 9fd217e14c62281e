"""Draws curves of a benchmark as a PNG. Only this needs matplotlib (extra `plots`)."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtime.bench.output import new_file

MARKERS = "osD^vP*X<>"  # as many as colors, so that curves that meet can be distinguished


@dataclass(frozen=True)
class Curve:
    """A line through points (x, y), each with its own label. The caller leaves out points without a value."""

    name: str
    points: Sequence[tuple[float, float]]
    labels: Sequence[str]


def add_argument(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("--plot", type=_png, metavar="FILE.png", help=f"draw {what} (needs matplotlib)")


def _png(text: str) -> Path:
    path = new_file(text)
    if path.suffix.lower() != ".png":
        raise argparse.ArgumentTypeError(f"{text!r} must end in .png")
    try:
        import matplotlib  # noqa: F401  (fails before the measurement)
    except ImportError:
        raise argparse.ArgumentTypeError("matplotlib is not installed: pip install '.[plots]'") from None
    return path


def draw(path: Path, title: str, axes: tuple[str, str], curves: Sequence[Curve], log_x: bool = False) -> None:
    """Writes `curves` with axis labels (x, y) as a PNG. Raises OSError if `path` cannot be written."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5) if len(curves) == 1 else (10, 5), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    plot = figure.add_subplot()
    for curve, marker in zip(curves, itertools.cycle(MARKERS)):
        style: dict[str, Any] = {"marker": marker, "markersize": 5, "markerfacecolor": "none", "linewidth": 1.2}
        plot.plot(*zip(*curve.points, strict=True), label=curve.name, clip_on=False, **style)
        for point, label in zip(curve.points, curve.labels, strict=True):
            plot.annotate(label, point, textcoords="offset points", xytext=(5, 5), fontsize=8)
    plot.set(title=title, xlabel=axes[0], ylabel=axes[1])
    if log_x:
        plot.set_xscale("log", base=2)
        plot.xaxis.set_major_formatter("{x:g}")
    plot.set_ylim(bottom=0)
    plot.grid(alpha=0.3)
    if len(curves) > 1:
        figure.legend(loc="outside right center", fontsize=8)  # beside the points, not over them
    figure.savefig(path)

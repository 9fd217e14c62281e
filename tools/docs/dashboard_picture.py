"""Draws the engines' panels of the dashboard with the data of a Prometheus server:
``python -m tools.docs.dashboard_picture PROMETHEUS_URL [MINUTES]``.

It evaluates the queries of dashboard.json as Grafana does, with all namespaces and services selected. The picture is
docs/images/dashboard.png.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

from tools.dashboard import DASHBOARD, ROOT

PICTURE = ROOT / "docs" / "images" / "dashboard.png"
VARIABLES = {"$namespace": ".*", "$service": ".*", "$__rate_interval": "30s"}
UNITS = {"reqps": "requests/s", "s": "s", "ops": "per s", "percentunit": "fraction", "bytes": "bytes"}
COLUMNS, STEP_SECONDS = 3, 5

Series = tuple[str, list[float], list[float]]  # legend, minutes, values


def query(url: str, expression: str, minutes: float) -> list[dict[str, Any]]:
    """Returns the result of a range query up to now."""
    end = time.time()
    fields = {"query": expression, "start": end - 60 * minutes, "end": end, "step": STEP_SECONDS}
    with urlopen(f"{url}/api/v1/query_range?{urlencode(fields)}") as answer:
        return list(json.load(answer)["data"]["result"])


def panels(run: Callable[[str], list[dict[str, Any]]]) -> list[tuple[str, str, list[Series]]]:
    """Returns title, unit and series of the first row's panels, without values that are always zero or missing.

    Args:
        run: evaluates an expression.
    """
    found = []
    for panel in json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"][1:]:
        if panel["type"] == "row":
            break
        series = [
            each
            for target in panel["targets"]
            for each in _series(target["legendFormat"], run(_filled(target["expr"])))
        ]
        if series:
            unit = panel["fieldConfig"]["defaults"]["unit"]
            found.append((panel["title"], UNITS.get(unit, ""), series))
    return found


def _filled(expression: str) -> str:
    for name, value in VARIABLES.items():
        expression = expression.replace(name, value)
    return expression


def _series(legend: str, results: list[dict[str, Any]]) -> list[Series]:
    series = []
    for result in results:
        labels, name = result["metric"], legend
        points = [(float(at), float(value)) for at, value in result["values"] if math.isfinite(float(value))]
        if any(value for _, value in points):
            for label in re.findall(r"\{\{(\w+)\}\}", legend):
                name = name.replace(f"{{{{{label}}}}}", labels.get(label, ""))
            minutes, values = zip(*((at / 60, value) for at, value in points), strict=True)
            series.append((name.strip() or labels.get("instance", ""), list(minutes), list(values)))
    return series


def draw(path: Path, drawn: list[tuple[str, str, list[Series]]]) -> None:
    """Writes the panels as a PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = -(-len(drawn) // COLUMNS)
    figure = Figure(figsize=(4.4 * COLUMNS, 2.3 * rows), dpi=90, layout="constrained")
    FigureCanvasAgg(figure)
    times = [minute for _, _, all_series in drawn for _, minutes, _ in all_series for minute in minutes]
    begin, end = min(times), max(times)
    for index, (title, unit, all_series) in enumerate(drawn, start=1):
        plot = figure.add_subplot(rows, COLUMNS, index)
        for name, minutes, values in all_series:
            plot.plot([minute - begin for minute in minutes], values, label=name, linewidth=1.2)
        plot.set_title(title, fontsize=7)
        plot.set_ylabel(unit, fontsize=7)
        plot.set_xlabel("minutes", fontsize=7)
        plot.tick_params(labelsize=7)
        plot.set_ylim(bottom=0)
        plot.set_xlim(0, max(end - begin, 1 / 60))
        plot.grid(alpha=0.3)
        if any(name for name, _, _ in all_series):
            plot.legend(fontsize=6, loc="upper left")
    figure.savefig(path)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        prog="python -m tools.docs.dashboard_picture", description="Draws the engines' panels of the dashboard."
    )
    parser.add_argument("address", metavar="PROMETHEUS_URL")
    parser.add_argument("minutes", metavar="MINUTES", type=float, nargs="?", default=10.0)
    options = parser.parse_args()
    draw(PICTURE, panels(lambda expression: query(options.address, expression, options.minutes)))

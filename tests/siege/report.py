"""Renders the measurements as a table."""

from __future__ import annotations

import os
from typing import Any

from rich.console import Console
from rich.table import Table

COLUMNS = ("attack", "RSS MB", "/health ms, failed", "clients s, failed", "verdict")
WIDTH = 120  # if the output is no terminal


def table(results: list[dict[str, Any]]) -> Table:
    shown = Table(title="What an attack costs the others", show_lines=True, expand=True)
    for column in COLUMNS:
        is_text = column in ("attack", "verdict")
        shown.add_column(column, overflow="fold", justify="left" if is_text else "right", ratio=2 if is_text else 1)
    for m in results:
        shown.add_row(*_cells(m), style=None if not m["missed"] else "red")
    return shown


def _cells(m: dict[str, Any]) -> tuple[str, ...]:
    health, client = m["health"], m.get("innocent") or m["good"]
    return (
        f"{m['attack']}\n{m['rate']}{', with a key' if m.get('keyed') else ''}; {m['seconds']:.0f} s",
        f"{m['rss_before_mb']:.0f} > {m['rss_peak_mb']:.0f} > {m['rss_after_mb']:.0f}",
        f"{health['longest_seconds'] * 1000:.0f}\n{health['failed']} of {health['probes']}",
        f"{client['longest_seconds']:.2f}\n{client['failed']} of {client['requests']}",
        "holds" if not m["missed"] else "MISSED: " + "; ".join(m["missed"]),
    )


def foot(results: list[dict[str, Any]]) -> str:
    """Returns notes on the conditions of the measurement, below the table."""
    nice = sorted({m["nice"] for m in results})
    idle = max(m["health"]["stand_in_longest_seconds"] for m in results)
    missed = sum(bool(m["missed"]) for m in results)
    return (
        f"{missed} of {len(results)} missed a bar. Server and attackers shared {os.cpu_count()} cores; attackers ran "
        f"at nice {', '.join(map(str, nice))}, the backend's arithmetic on one thread. A server that does nothing, "
        f"asked beside it, took up to {idle * 1000:.0f} ms, the machine's doing. RSS: before, peak, after; more "
        "with --json."
    )


def console() -> Console:
    """Returns a console as wide as the terminal, or `WIDTH`."""
    found = Console()
    return found if found.is_terminal else Console(width=WIDTH)

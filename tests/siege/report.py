"""The figures as a table, and everything that was measured as JSON."""

from __future__ import annotations

import os
from typing import Any

from rich.console import Console
from rich.table import Table

COLUMNS = (
    "attack", "RSS MB before > peak > after", "/health ms longest, p99", "failed probes", "stand-in ms",
    "client s usual > longest", "failed", "descriptors", "log lines/s", "CPU s attackers, frontend, backends",
    "verdict",
)  # fmt: skip


def table(results: list[dict[str, Any]]) -> Table:
    shown = Table(title="What an attack costs the others", show_lines=True)
    for column in COLUMNS:
        shown.add_column(column, overflow="fold", justify="left" if column in ("attack", "verdict") else "right")
    for m in results:
        shown.add_row(*_cells(m), style=None if not m["missed"] else "red")
    return shown


def _cells(m: dict[str, Any]) -> tuple[str, ...]:
    health, client, cpu = m["health"], m.get("innocent") or m["good"], m["cpu_seconds"]
    return (
        f"{m['attack']}\n{m['rate']}{', with a key' if m.get('keyed') else ''}; {m['seconds']:.0f} s",
        f"{m['rss_before_mb']:.0f} > {m['rss_peak_mb']:.0f} > {m['rss_after_mb']:.0f}",
        f"{health['longest_seconds'] * 1000:.0f}, {health['p99_seconds'] * 1000:.0f}",
        f"{health['failed']} of {health['probes']}",
        f"{health['stand_in_longest_seconds'] * 1000:.0f}",
        f"{m['usual_seconds']:.2f} > {client['longest_seconds']:.2f}",
        f"{client['failed']} of {client['requests']}",
        f"{m['descriptors_before']} > {m['descriptors_after']}",
        f"{m['log_lines_most_a_second']}",
        f"{cpu['attackers']:.1f}, {cpu['frontend']:.1f}, {cpu['backends']:.1f}",
        "holds" if not m["missed"] else "MISSED: " + "; ".join(m["missed"]),
    )


def foot(results: list[dict[str, Any]]) -> str:
    """How far these figures may be trusted."""
    nice = sorted({m["nice"] for m in results})
    missed = sum(bool(m["missed"]) for m in results)
    return (
        f"{missed} of {len(results)} missed a bar. Server and attackers shared {os.cpu_count()} cores; attackers ran "
        f"at nice {', '.join(map(str, nice))}, the backend's arithmetic on one thread. stand-in: the longest that a "
        "server with nothing to do took beside it, which is the machine's doing."
    )


def console() -> Console:
    """As wide as the table needs, also in a file."""
    found = Console()
    return found if found.is_terminal else Console(width=220)

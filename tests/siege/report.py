"""Renders the measurements as text."""

from __future__ import annotations

import os
from typing import Any


def row(m: dict[str, Any]) -> str:
    """Returns what an attack did to the others: memory before, peak and after, probes, clients, and the verdict."""
    health, client = m["health"], m.get("innocent") or m["good"]
    return (
        f"{m['attack']} ({m['rate']}{', with a key' if m.get('keyed') else ''}; {m['seconds']:.0f} s)\n"
        f"  RSS {m['rss_before_mb']:.0f} > {m['rss_peak_mb']:.0f} > {m['rss_after_mb']:.0f} MB; "
        f"/health {health['longest_seconds'] * 1000:.0f} ms, {health['failed']} of {health['probes']} failed; "
        f"clients {client['longest_seconds']:.2f} s, {client['failed']} of {client['requests']} failed\n"
        f"  {'MISSED: ' + '; '.join(m['missed']) if m['missed'] else 'holds'}"
    )


def foot(results: list[dict[str, Any]]) -> str:
    """Returns notes on the conditions of the measurement."""
    nice = sorted({m["nice"] for m in results})
    idle = max(m["health"]["stand_in_longest_seconds"] for m in results)
    missed = sum(bool(m["missed"]) for m in results)
    return (
        f"{missed} of {len(results)} missed a bar. Server and attackers shared {os.cpu_count()} cores; attackers ran "
        f"at nice {', '.join(map(str, nice))}. A server that does nothing took up to {idle * 1000:.0f} ms. "
        "More with --json."
    )

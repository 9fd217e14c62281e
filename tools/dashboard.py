"""Generates Grafana's JSON of the dashboard from tools/panels.yaml: ``python -m tools.dashboard``.

The chart and compose.yaml use the same file.
"""

from __future__ import annotations

import json
import string
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
PANELS = ROOT / "tools" / "panels.yaml"
DASHBOARD = ROOT / "charts" / "unmask-operator" / "files" / "dashboard.json"
SCOPE = 'namespace=~"$namespace", job=~"$service"'
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
WIDTH, HEIGHT, COLUMNS = 12, 8, 2  # of a panel in Grafana's grid, and panels per row


def dashboard(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the dashboard.

    Args:
        rows: titles with their panels, as in tools/panels.yaml.
    """
    panels: list[dict[str, Any]] = []
    top = 0
    for row in rows:
        position = {"h": 1, "w": WIDTH * COLUMNS, "x": 0, "y": top}
        panels.append(_panel(len(panels) + 1, "row", row["title"], position) | {"collapsed": False, "panels": []})
        top += 1
        for index, panel in enumerate(row["panels"]):
            line, column = divmod(index, COLUMNS)
            position = {"h": HEIGHT, "w": WIDTH, "x": WIDTH * column, "y": top + HEIGHT * line}
            panels.append(
                _panel(len(panels) + 1, "timeseries", panel["title"], position)
                | {"targets": _targets(panel["queries"]), "datasource": DATASOURCE}
                | {"fieldConfig": {"defaults": {"unit": panel["unit"], "min": 0}, "overrides": []}}
            )
        top += HEIGHT * -(-len(row["panels"]) // COLUMNS)
    variables = [
        {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source"},
        _variable("namespace", "label_values(unmask_build_info, namespace)"),
        _variable("service", 'label_values(unmask_build_info{namespace=~"$namespace"}, job)'),
    ]
    return {
        "uid": "unmask",
        "title": "Unmask",
        "tags": ["unmask"],
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": variables},
        "panels": panels,
    }


def text() -> str:
    """Returns the content of the generated file."""
    rows = yaml.safe_load(PANELS.read_text(encoding="utf-8"))
    return f"{json.dumps(dashboard(rows), indent=1, sort_keys=True)}\n"


def _panel(number: int, kind: str, title: str, position: dict[str, int]) -> dict[str, Any]:
    return {"id": number, "type": kind, "title": title, "gridPos": position}


def _targets(queries: dict[str, str]) -> list[dict[str, str]]:
    return [
        {"refId": letter, "expr": _expression(queries[legend]), "legendFormat": legend}
        for letter, legend in zip(string.ascii_uppercase, sorted(queries), strict=False)
    ]


def _expression(query: str) -> str:
    return query.replace("$scope", SCOPE).replace("$rate", "$__rate_interval")


def _variable(name: str, query: str) -> dict[str, Any]:
    selection = {"includeAll": True, "multi": True, "allValue": ".*", "refresh": 2}
    return {"name": name, "type": "query", "query": query, "datasource": DATASOURCE, **selection}


if __name__ == "__main__":
    DASHBOARD.write_text(text(), encoding="utf-8")

"""The dashboard's JSON is generated, and its picture shows the results of its queries."""

import json
import re

from tools import dashboard
from tools.docs import dashboard_picture


def test_the_dashboard_is_that_of_the_panels():
    assert dashboard.DASHBOARD.read_text(encoding="utf-8") == dashboard.text(), "run python -m tools.dashboard"


def test_panels_have_positions_of_their_own_and_complete_queries():
    panels = json.loads(dashboard.text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len({(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}) == len(panels)
    queries = [target["expr"] for panel in panels for target in panel.get("targets", ())]
    assert queries
    assert not any(re.search(r"\$scope|\$rate\b", query) for query in queries)


def result(expression, **labels):
    """Returns two samples, and none for what a server without a GPU does not have."""
    values = [[60, "1"], [120, "NaN"], [180, "3"]]
    return [] if re.search("device|step_host", expression) else [{"metric": labels, "values": values}]


def test_the_picture_has_the_panels_of_engines_that_have_data():
    found = dashboard_picture.panels(lambda expression: result(expression, outcome="stop", instance="server:8000"))
    titles = [title for title, _, _ in found]
    assert "Requests per second, by outcome" in titles
    assert not any("on GPUs" in title for title in titles)
    assert not any(title.startswith(("Services by", "Leader")) for title in titles)
    (_, unit, series) = found[0]
    assert (unit, series) == ("requests/s", [("stop", [1.0, 3.0], [1.0, 3.0])])


def test_queries_of_the_picture_have_no_variables():
    asked = []
    dashboard_picture.panels(lambda expression: asked.append(expression) or [])
    assert asked
    assert not any("$" in expression for expression in asked)


def test_the_picture_is_drawn(tmp_path):
    file = tmp_path / "dashboard.png"
    dashboard_picture.draw(file, dashboard_picture.panels(lambda expression: result(expression)))
    assert file.read_bytes().startswith(b"\x89PNG")

"""Tests of the Grafana dashboard: its generated JSON, the series in its queries, and its picture."""

import json
import re

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.server.harness import serving
from tools import dashboard
from tools.docs import dashboard_picture

TARGET_LABELS = {"namespace", "job", "pod"}  # Prometheus adds these, by compose.yaml or a PodMonitor
ENGINES, OPERATOR = yaml.safe_load(dashboard.PANELS.read_text(encoding="utf-8"))
QUERIES = [query for panel in ENGINES["panels"] for query in panel["queries"].items()]


def test_the_dashboard_is_generated_from_its_panels():
    assert dashboard.DASHBOARD.read_text(encoding="utf-8") == dashboard.text(), "run python -m tools.dashboard"


def test_panels_have_distinct_positions_and_complete_queries():
    panels = json.loads(dashboard.text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len({(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}) == len(panels)
    queries = [target["expr"] for panel in panels for target in panel.get("targets", ())]
    assert queries
    assert not any(re.search(r"\$scope|\$rate\b", query) for query in queries)


@pytest.fixture(scope="module")
def labels_of_series():
    """Returns the label names of each series of a server that has answered a request."""
    found: dict[str, set[str]] = {}
    with serving("--device", "cpu", "--lora", "roman=demo://roman") as server:
        message = {"role": "user", "content": "What is 7 x 8?"}
        with server.client() as client:
            request = {"model": "roman", "messages": [message], "stream": True}
            answer = client.post("/v1/chat/completions", json=request)
            assert answer.status_code == 200, answer.text
            text = client.get("/metrics").text
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


@pytest.mark.parametrize(("legend", "query"), QUERIES, ids=[query for _, query in QUERIES])
def test_a_server_has_the_series_and_labels_of_each_query(labels_of_series, legend, query):
    names = re.findall(r"\bunmask_\w+", query)
    assert names
    assert set(names) <= labels_of_series.keys()
    grouped = {label for labels in re.findall(r"\bby \((.*?)\)", query) for label in labels.split(", ")}
    shown = set(re.findall(r"{{(\w+)}}", legend))
    for name in names:
        assert grouped | shown <= labels_of_series[name] | TARGET_LABELS
    if "sum" in query or "max" in query:
        assert shown <= grouped, "the legend has labels that the aggregation drops"


def result(expression, **labels):
    """Returns two finite samples and a NaN, or nothing for metrics that a server without a GPU does not have."""
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

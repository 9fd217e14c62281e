"""Tests that the chart's dashboard and alerts use metrics that the operator and the engines have."""

import json
import re

import pytest
from prometheus_client import generate_latest

from runtime.server.metrics import Metrics as EngineMetrics
from runtime.server.metrics import RequestMetrics
from tests.operator.helm import render
from unmask_operator.kube.cache import Cache
from unmask_operator.metrics import Metrics as OperatorMetrics

pytestmark = pytest.mark.programs


def known():
    text = (
        generate_latest(OperatorMetrics(Cache(), lambda: 0).registry).decode()
        + EngineMetrics("m", RequestMetrics()).text().decode()
    )
    names = set(re.findall(r"^(?:# TYPE )?(unmask_\w+)", text, re.MULTILINE))
    return names | {
        f"{name}_{part}"
        for name in re.findall(r"^# TYPE (\w+) histogram", text, re.MULTILINE)
        for part in ("bucket", "sum", "count")
    }


def test_the_dashboard_uses_existing_metrics():
    (config,) = (o for o in render(monitoring__dashboard__enabled=True) if o["kind"] == "ConfigMap")
    panels = json.loads(config["data"]["unmask.json"])["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) > 10
    assert len({(p["gridPos"]["x"], p["gridPos"]["y"]) for p in panels}) == len(panels)
    for query in (target["expr"] for panel in panels for target in panel.get("targets", ())):
        names = set(re.findall(r"\bunmask_\w+", query))
        assert names
        assert names <= known(), query
        assert "$scope" not in query
        assert "$rate]" not in query


def test_alerts_use_existing_metrics():
    (rules,) = (o for o in render(monitoring__prometheusRule__enabled=True) if o["kind"] == "PrometheusRule")
    alerts = [rule for group in rules["spec"]["groups"] for rule in group["rules"]]
    assert len({alert["alert"] for alert in alerts}) == len(alerts)
    for alert in alerts:
        names = set(re.findall(r"\bunmask_\w+", alert["expr"]))
        assert names
        assert names <= known(), alert["alert"]
        assert alert["annotations"]["summary"]
        assert alert["labels"]["severity"] in ("warning", "critical")


def test_alerts_name_the_service_and_exclude_services_that_are_stopped_on_purpose():
    (rules,) = (o for o in render(monitoring__prometheusRule__enabled=True) if o["kind"] == "PrometheusRule")
    alerts = {rule["alert"]: rule for group in rules["spec"]["groups"] for rule in group["rules"]}
    for name in ("UnmaskServiceUnavailable", "UnmaskServiceNotReady"):
        assert "by (namespace, name)" in alerts[name]["expr"]
        assert "unless on (namespace, name) unmask_operator_service_stopped == 1" in alerts[name]["expr"]
        assert "{{ $labels.namespace }}/{{ $labels.name }}" in alerts[name]["annotations"]["summary"]


def test_the_monitor_keeps_the_namespace_that_a_metric_names():
    objects = render(monitoring__serviceMonitor__enabled=True, networkPolicy__enabled=False)
    (monitor,) = (o for o in objects if o["kind"] == "ServiceMonitor")
    assert [endpoint["honorLabels"] for endpoint in monitor["spec"]["endpoints"]] == [True]

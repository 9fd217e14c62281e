"""Tests of the chart's activator: its objects, its rights and those that the operator gets with it."""

import pytest

from tests.operator.chart_samples import ALL, PEERS
from tests.operator.helm import render
from tools.permissions import ACTIVATOR_RULES, RULES, VALUE_RULES, missing, unused
from unmask_operator.api.autoscaling import ACTIVATOR_PORTS
from unmask_operator.settings import read_settings

pytestmark = pytest.mark.programs
NAME = "unmask-operator-activator"
KINDS = ("ServiceAccount", "Service", "Deployment", "PodDisruptionBudget", "NetworkPolicy")


def named(**values):
    return {(obj["kind"], obj["metadata"]["name"]): obj for obj in render(activator__enabled=True, **values)}


def variables(deployment):
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    env = {e["name"]: e.get("value", e["name"].lower()).replace("$$", "$") for e in container["env"]}
    return read_settings(env), container


def test_its_objects_are_apart_from_those_of_the_operator():
    objects, plain = named(), {(obj["kind"], obj["metadata"]["name"]) for obj in render()}
    role = {("ClusterRole", "unmask-system:unmask-operator:activator")}
    assert objects.keys() - plain == {(kind, NAME) for kind in KINDS} | role | {
        ("ClusterRoleBinding", *name[1:]) for name in role
    }
    pods = objects["Deployment", NAME]["spec"]["template"]["metadata"]["labels"]
    for kind, path in (("Service", ("spec", "selector")), ("Deployment", ("spec", "selector", "matchLabels")),
                       ("PodDisruptionBudget", ("spec", "selector", "matchLabels")),
                       ("NetworkPolicy", ("spec", "podSelector", "matchLabels"))):  # fmt: skip
        for name, selects in ((NAME, True), ("unmask-operator", False)):
            selector = objects[kind, name]
            for part in path:
                selector = selector[part]
            assert (selector.items() <= pods.items()) == selects, (kind, name)
    settings, container = variables(objects["Deployment", "unmask-operator"])
    assert (settings.activator, settings.activator_selector.items() <= pods.items()) == (NAME, True)
    own, container = variables(objects["Deployment", NAME])
    assert container["command"] == ["python", "-m", "unmask_operator.activator"]
    assert (own.log_format, own.watch_namespaces) == ("json", ())
    ranges = [port for rule in objects["NetworkPolicy", NAME]["spec"]["ingress"] for port in rule["ports"]]
    assert ranges == [{"port": ACTIVATOR_PORTS[0], "endPort": ACTIVATOR_PORTS[-1]}]


def test_its_values():
    objects = named(
        **ALL, activator__replicas=1, activator__terminationGracePeriodSeconds=60, watchSelector="a=b",
        watchNamespaces=["x"], networkPolicy={"metricsFrom": PEERS}, nodeSelector={"disk": "ssd"},
    )  # fmt: skip
    assert ("PodDisruptionBudget", NAME) not in objects
    pod = objects["Deployment", NAME]["spec"]["template"]["spec"]
    assert (pod["terminationGracePeriodSeconds"], pod["nodeSelector"]["disk"]) == (60, "ssd")
    settings, _ = variables(objects["Deployment", NAME])
    assert (settings.watch_selector, settings.watch_namespaces) == (("a=b",), ("x",))
    assert objects["NetworkPolicy", NAME]["spec"]["ingress"][1]["from"] == PEERS
    monitor, service = objects["ServiceMonitor", NAME]["spec"], objects["Service", NAME]
    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()


@pytest.mark.parametrize("namespaces", [[], ["a", "b"]])
def test_rights(namespaces):
    objects = named(watchNamespaces=namespaces, rbac__readNodes=False, rbac__aggregate=False)
    roles = {name: obj["rules"] for name, obj in objects.items() if name[0] in ("Role", "ClusterRole")}
    own = roles.pop(("Role", "unmask-operator"))
    activator = [name for name in roles if name[1].endswith("activator")]
    assert len(activator) == 1
    further = VALUE_RULES["activator"]
    for rules, expected in (
        (roles.pop(activator[0]), ACTIVATOR_RULES),
        *((rules, [rule for rule in (*RULES, *further) if rule.scope == "watched"]) for rules in roles.values()),
        (own, [rule for rule in (*RULES, *further) if rule.scope == "own"]),
    ):
        assert missing(rules, expected) == unused(rules, expected) == []
    binding = objects[f"{activator[0][0]}Binding", activator[0][1]]
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": NAME, "namespace": "unmask-system"}]

"""Values for the operator's chart, and what tests read from its rendered objects."""

from unmask_operator.settings import read_settings

DIGEST = "sha256:" + "0" * 64
PEERS = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]
TOLERATIONS = [
    {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
    {"key": "pool", "value": 'a"<b>', "effect": "NoExecute", "tolerationSeconds": 3000000},
]
MONITORING = ("serviceMonitor", "prometheusRule", "dashboard")
ALL = {"networkPolicy__metricsFrom": PEERS, **{f"monitoring__{name}__enabled": True for name in MONITORING}}


def one(objects, kind):
    (found,) = (o for o in objects if o["kind"] == kind)
    return found


def container(objects):
    (found,) = one(objects, "Deployment")["spec"]["template"]["spec"]["containers"]
    return found


def settings(objects):
    env = {e["name"]: e.get("value", e["name"].lower()) for e in container(objects)["env"]}
    return read_settings({name: value.replace("$$", "$") for name, value in env.items()})  # as the kubelet expands it

"""Tests of engines over several pods: the LeaderWorkerSet, who serves, and conditions about the pods of a group."""

import copy
from dataclasses import replace
from typing import Any

import pytest

from runtime.config import parse as parse_arguments
from tests.operator.pod_states import RUNNING, SCHEDULED, check, container, gpu_node, judge, unschedulable
from tests.operator.samples import NOW, SETTINGS, apply, child, edit, kinds, make, observe, resource, restarted, running
from unmask_operator.kinds import LEADER_WORKER_SETS
from unmask_operator.objects import ADOPT, TEMPLATE_LABEL, Obj, Ref
from unmask_operator.plan.observed import Observed
from unmask_operator.render.groups import as_deployment
from unmask_operator.settings import Settings
from unmask_operator.status import status
from unmask_operator.status.groups import LIMIT, WINDOW, GroupFailures

TWO: Obj = {"gpu": {}, "parallelism": {"tensor": 4, "nodes": 2}}
LABELS = "leaderworkerset.sigs.k8s.io"


def group(observed: Observed) -> Obj:
    return child(make(observed), "LeaderWorkerSet")


def templates(observed: Observed) -> list[Obj]:
    """Returns the templates of leader and workers."""
    found = group(observed)["spec"]["leaderWorkerTemplate"]
    return [found["leaderTemplate"], found["workerTemplate"]]


def engine(template: Obj) -> Any:
    (main,) = template["spec"]["containers"]
    return main


def play(observed: Observed, *states: Obj, **metadata: Any) -> list[Obj]:
    """Returns the pods of groups of two as LeaderWorkerSet creates them: leader 0, worker 1 of group 0, leader 1 ..."""
    found = []
    for number, state in enumerate(states):
        index, worker = divmod(number, 2)
        template = copy.deepcopy(templates(observed)[worker])
        labels = {f"{LABELS}/group-index": str(index), f"{LABELS}/worker-index": str(worker)}
        own = {"name": f"demo-group-{index}" + "-1" * worker, "namespace": "default", "uid": f"p{number}", **metadata}
        own |= {
            "labels": {**template["metadata"]["labels"], **labels},
            "creationTimestamp": f"2026-01-02T03:00:0{number}Z",
        }
        variables = {"LWS_LEADER_ADDRESS": f"demo-group-{index}.demo-group", "LWS_WORKER_INDEX": str(worker)}
        env = engine(template)["env"]
        env[:0] = [{"name": name, "value": value} for name, value in variables.items()]
        found.append({"metadata": own, "spec": {**template["spec"], "nodeName": f"n{number}"}, "status": state})
    return found


def state(ready: bool = True, **main: Any) -> Obj:
    """Returns the status of a running pod."""
    one = container(**{"ready": ready, "started": ready, "state": RUNNING, **main})
    conditions = [{"type": "Ready", "status": str(ready)}, SCHEDULED]
    return {"phase": "Running", "podIP": "10.0.0.1", "containerStatuses": [one], "conditions": conditions}


READY, LOADING = state(), state(ready=False)
ENDED = {
    "terminated": {"exitCode": 1, "reason": "Error", "message": "no such file", "finishedAt": "2026-01-02T03:04:00Z"}
}
WAITS = {"waiting": {"reason": "CrashLoopBackOff"}}
PULL = {"waiting": {"reason": "ImagePullBackOff", "message": "no such tag"}}


def test_leader_and_workers_form_one_engine_and_the_leader_serves() -> None:
    observed = observe(resource(**TWO, replicas=3))
    made = make(observed)
    assert "Deployment" not in kinds(made)
    spec = group(observed)["spec"]
    assert (group(observed)["metadata"]["name"], spec["replicas"]) == ("demo-group", 3)
    assert spec["leaderWorkerTemplate"]["size"] == 2
    assert spec["rolloutStrategy"]["rollingUpdateConfiguration"] == {"maxSurge": 0, "maxUnavailable": 1}
    leader, worker = templates(observed)
    configs = [parse_arguments(engine(one)["args"], {}) for one in (leader, _indexed(worker))]
    assert [(one.num_nodes, one.node_rank, one.engine.tensor_parallel_size) for one in configs] == [
        (2, 0, 4),
        (2, 1, 4),
    ]
    assert len({one.master_port for one in configs}) == 1
    assert [one.master_addr for one in configs] == ["$(POD_IP)", "$(LWS_LEADER_ADDRESS)"]
    assert {"POD_IP"} <= {entry["name"] for entry in engine(leader)["env"]}
    serving = {"ports", "startupProbe", "readinessProbe", "livenessProbe"}
    assert serving <= engine(leader).keys()
    assert not serving & engine(worker).keys()
    for template in (leader, worker):
        assert engine(template)["resources"]["limits"]["nvidia.com/gpu"] == 2
    for kind, path in (("Service", ["selector"]), ("PodDisruptionBudget", ["selector", "matchLabels"])):
        selector = child(made, kind)["spec"]
        for member in path:
            selector = selector[member]
        selected = [selector.items() <= one["metadata"]["labels"].items() for one in (leader, worker)]
        assert selected == [True, kind != "Service"], "an eviction of a worker interrupts its group too"
    role = status(observed, made)["selector"]
    assert role == "serving.unmask.dev/service=demo,serving.unmask.dev/role=leader"


def _indexed(worker: Obj) -> Obj:
    """Returns the template with the variable that LeaderWorkerSet sets."""
    made = copy.deepcopy(worker)
    engine(made)["args"] = [one.replace("$(LWS_WORKER_INDEX)", "1") for one in engine(made)["args"]]
    return made


def test_sections_of_the_spec_apply_to_groups() -> None:
    sections: Obj = {
        "parallelism": {**TWO["parallelism"], "topologyKey": "example.com/rack"},
        "rolloutStrategy": {"maxSurge": 1},
        "networkPolicy": {"from": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]},
        "monitoring": {"podMonitor": {}},
        "inferencePool": {},
        "podTemplate": {
            "spec": {"priorityClassName": "high", "containers": [{"name": "main", "env": [{"name": "A"}]}]}
        },
    }
    observed = observe(resource(**{**TWO, **sections}))
    made = make(observed)
    assert group(observed)["metadata"]["annotations"][f"{LABELS}/exclusive-topology"] == "example.com/rack"
    assert group(observed)["spec"]["rolloutStrategy"]["rollingUpdateConfiguration"]["maxSurge"] == 1
    for template in templates(observed):
        assert template["spec"]["priorityClassName"] == "high"
        assert {"name": "A"} in engine(template)["env"]
    clients, ranks = child(made, "NetworkPolicy")["spec"]["ingress"]
    assert clients["ports"]
    assert ranks == {"from": [{"podSelector": {"matchLabels": {"serving.unmask.dev/service": "demo"}}}]}
    for kind in ("PodMonitor", "InferencePool"):
        assert child(made, kind)["spec"]["selector"]["matchLabels"]["serving.unmask.dev/role"] == "leader"


@pytest.mark.parametrize(
    ("settings", "apis", "expected"),
    [
        (
            Settings(),
            {LEADER_WORKER_SETS.api},
            "Accepted,Ready False NotEnabled lws.enabled ... spec.parallelism.nodes",
        ),
        (
            SETTINGS,
            set(),
            "Accepted,Ready False MissingCRD leaderworkersets.leaderworkerset.x-k8s.io ... LeaderWorkerSet",
        ),
    ],
)
def test_a_cluster_without_the_kind_is_reported(settings: Settings, apis: set[str], expected: str) -> None:
    observed = observe(resource(**TWO), apis=frozenset(apis))
    made = make(observed, settings)
    assert "LeaderWorkerSet" not in kinds(made)
    check(judge(observed, made), expected)


def test_a_pin_keeps_both_templates() -> None:
    observed = running(**TWO)
    before = templates(observed)
    newer = replace(SETTINGS, runtime_image="unmask-runtime:0.2.0", engine_env={"NEW": "1"})
    for edited in (observed, edit(observed, replicas=2, rolloutStrategy={"maxUnavailable": 2})):
        made = child(make(edited, newer), "LeaderWorkerSet")["spec"]["leaderWorkerTemplate"]
        assert [made["leaderTemplate"], made["workerTemplate"]] == before, "an upgrade restarts no engine"
    made = child(make(restarted(observed, "now"), newer), "LeaderWorkerSet")["spec"]["leaderWorkerTemplate"]
    for template in (made["leaderTemplate"], made["workerTemplate"]):
        assert engine(template)["image"] == "unmask-runtime:0.2.0"


def test_orphans_are_adopted_with_their_templates() -> None:
    observed = running(**TWO)
    live = observed.children[Ref.of(group(observed))]
    for template in (live["spec"]["leaderWorkerTemplate"][f"{role}Template"] for role in ("leader", "worker")):
        template["metadata"]["labels"][TEMPLATE_LABEL] = "old"
        engine(template)["image"] = "old:1"
    asks = replace(observed, resource=resource(annotations={ADOPT: "true"}, **TWO), children={Ref.of(live): live})
    assert [engine(template)["image"] for template in templates(asks)] == ["old:1"] * 2


@pytest.mark.parametrize(
    ("states", "counts", "expected"),
    [
        ((), (0, 0, 0), ["Scheduled False Pending", "RolloutComplete,Available False"]),
        ((LOADING, READY), (1, 0, 1),
         ["ModelLoaded False Starting", "RolloutComplete,Available,Ready False", "Scheduled True"]),
        ((READY, READY), (1, 1, 1), ["ModelLoaded,RolloutComplete,Available,Ready True"]),
        ((READY, READY, LOADING, READY), (2, 1, 2),
         ["RolloutComplete False Progressing 2 of 2 groups", "Available True"]),
        ((LOADING, state(False, state=PULL)), (1, 0, 1),
         ["ModelLoaded,Ready False ImagePullBackOff ^worker 1 of group 0: image i cannot be pulled: no such tag"]),
        ((state(False, state=WAITS, lastState=ENDED, restartCount=3), READY), (1, 0, 1),
         ["ModelLoaded False CrashLoopBackOff ^leader of group 0: container main ended ... no such file"]),
        ((LOADING, state(lastState=ENDED, restartCount=2)), (1, 0, 1),
         ["ModelLoaded False CrashLoopBackOff ^worker 1 of group 0: container main ended ... no such file"]),
        ((READY, state(lastState=ENDED, restartCount=2)), (1, 1, 1), ["ModelLoaded,Ready True"]),
    ],
)  # fmt: skip
def test_conditions_count_groups_and_name_their_pods(
    states: Any, counts: tuple[int, int, int], expected: list[str]
) -> None:
    observed = running(**TWO, replicas=max(1, len(states) // 2))
    observed = replace(observed, pods=play(observed, *states))
    found = status(observed, make(observed))
    assert tuple(found.get(name, 0) for name in ("replicas", "readyReplicas", "updatedReplicas")) == counts
    check(judge(observed), *expected)


def test_a_rollout_is_complete_once_all_groups_are_new() -> None:
    observed = running(**TWO)
    old = play(observed, READY, READY)
    observed = edit(observed, image="unmask-runtime:0.1.1")
    observed = replace(apply(observed, make(observed)), pods=old)
    check(judge(observed), "RolloutComplete False Progressing 0 of 1 groups", "Available True")
    observed = replace(observed, pods=play(observed, READY, READY))
    check(judge(observed), "RolloutComplete,UpToDate,Ready True")
    live = observed.children[Ref.of(group(observed))]
    assert as_deployment(live, old)["status"]["updatedReplicas"] == 0


def test_a_group_without_gpus_says_how_many_nodes_it_needs() -> None:
    observed = running(**TWO)
    lacks = unschedulable("0/1 nodes are available: 1 Insufficient nvidia.com/gpu.")
    pods = play(observed, lacks, lacks)
    for pod in pods:
        del pod["spec"]["nodeName"]
    observed = replace(observed, pods=pods, nodes=[gpu_node("a", "1")])
    check(judge(observed), "Scheduled False InsufficientGPU a group needs 2 nodes with 2 free nvidia.com/gpu each")


def test_a_group_that_keeps_failing_is_unstable_until_it_is_not() -> None:
    observed = running(**TWO)
    failures, now = GroupFailures(), NOW
    good, bad = play(observed, READY, READY), play(observed, LOADING, state(lastState=ENDED, restartCount=1))
    for _ in range(LIMIT):
        assert not failures.observe(good, now)
        assert not failures.observe(bad, now)
        assert not failures.observe(bad, now), "the same failure counts once"
    failures.observe(good, now)
    message = failures.observe(bad, now)
    assert message.startswith(
        f"group 0 failed {LIMIT + 1} times within 10 minutes: worker 1 of group 0: container main"
    )
    assert message.endswith("no such file")
    observed = replace(observed, pods=good, unstable=message)
    check(judge(observed), "ModelLoaded,Ready False GroupUnstable no such file", "Available True")
    leaving = play(observed, LOADING, READY, deletionTimestamp="2026-01-02T03:04:05Z")
    assert not GroupFailures().observe(leaving, now)
    assert not failures.observe(bad, now + WINDOW)

"""Tests of adapters: the pod template, the list that pods follow, and the state that they report."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from runtime.config.adapter_names import check_adapter_name
from runtime.server.engine_client.adapter_registry import read_lora_config
from tests.operator.fake_api import KEY, FakeApi
from tests.operator.pod_states import check, judge, make_pod
from tests.operator.samples import NEW, SETTINGS, apply, child, container, edit, kinds, make, running, settled, template
from unmask_operator.controller import adapters
from unmask_operator.kube.errors import ApiError
from unmask_operator.objects import Obj, Ref
from unmask_operator.plan.observed import Adapter, Observed
from unmask_operator.plan.plan import last_accepted
from unmask_operator.settings import Settings
from unmask_operator.status import status
from unmask_operator.status.transitions import transitions

LIST_HASH = Ref("v1", "ConfigMap", "demo-adapters")
ROMAN = {"name": "roman", "uri": "demo://roman"}
LEGAL = {"name": "legal", "uri": "hf://org/legal", "revision": "v2"}
CHESS = {"name": "chess", "uri": "pvc://tuned/chess/v1/"}


def lora(*adapters: Obj, **fields: Any) -> Obj:
    return {**fields, "adapters": list(adapters)}


def volumes(made: Any) -> dict[str, Obj]:
    return {one["name"]: one for one in template(made)["spec"]["volumes"]}


def mounts(made: Any) -> dict[str, str]:
    every = container(made)["volumeMounts"]
    assert all(one["readOnly"] for one in every if "adapters" in one["name"])
    return {one["mountPath"]: one["name"] for one in every}


def test_the_list_is_a_config_map_that_the_runtime_reads(tmp_path: Any) -> None:
    made = make(running(lora=lora(ROMAN, LEGAL, CHESS, claimNames=["tuned"])))
    listed = child(made, "ConfigMap")
    assert listed["metadata"]["name"] == "demo-adapters"
    uris = {"roman": "demo://roman", "legal": "hf://org/legal@v2", "chess": "/mnt/adapters/tuned/chess/v1"}
    assert listed["data"] == uris
    assert kinds(made).index("ConfigMap") < kinds(made).index("Deployment")
    (tmp_path / "..first").mkdir()  # a kubelet mounts it like this, so that all files change at the same time
    (tmp_path / "..data").symlink_to("..first")
    for name, uri in listed["data"].items():
        (tmp_path / "..first" / name).write_text(uri)
        (tmp_path / check_adapter_name(name)).symlink_to(f"..data/{name}")
    assert read_lora_config(str(tmp_path)) == listed["data"]
    assert "--lora-config=/etc/unmask/adapters" in container(made)["args"]
    assert mounts(made).items() >= {"/etc/unmask/adapters": "adapters", "/mnt/adapters/tuned": "adapters-0"}.items()
    assert volumes(made)["adapters"]["configMap"] == {"name": "demo-adapters"}
    assert volumes(made)["adapters-0"]["persistentVolumeClaim"] == {"claimName": "tuned"}


def test_adapters_on_the_models_own_claim_use_its_volume() -> None:
    model = {"uri": "pvc://tuned/base"}
    made = make(running(model=model, lora=lora(CHESS, claimNames=["tuned"])))
    assert "--model=/mnt/model/base" in container(made)["args"]
    assert len(mounts(made)) == len(container(made)["volumeMounts"])
    alone = make(running(model=model, lora=lora(CHESS)))
    assert mounts(alone).items() >= {"/mnt/model": "model", "/mnt/adapters/tuned": "model"}.items()
    assert child(alone, "ConfigMap")["data"] == {"chess": "/mnt/adapters/tuned/chess/v1"}
    assert "/mnt/adapters/tuned" not in mounts(make(running(model=model)))


def test_lora_limits_are_in_the_pod_template_also_without_adapters() -> None:
    made = make(running(lora={"maxAdapters": 3, "maxRank": 32}))
    assert {"--max-loras=3", "--max-lora-rank=32", "--lora-config=/etc/unmask/adapters"} <= set(container(made)["args"])
    assert child(made, "ConfigMap")["data"] == {}
    assert "lora" not in str(container(make(running()))["args"])
    assert "ConfigMap" not in kinds(make(running()))


LORA_LIMITS = {"claimNames": ["tuned"], "maxAdapters": 2}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((), (ROMAN, CHESS)),
        ((ROMAN, LEGAL), ()),
        ((ROMAN, LEGAL), ({**LEGAL, "revision": "v3"},)),
    ],
)
@pytest.mark.parametrize("operator", [SETTINGS, NEW], ids=["same", "newer"])
def test_a_change_of_the_list_changes_no_pod(before: Any, after: Any, operator: Settings) -> None:
    observed = running(lora=lora(*before, **LORA_LIMITS))
    edited = edit(observed, lora=lora(*after, **LORA_LIMITS))
    made = make(edited, operator)
    assert template(made) == template(make(observed))
    assert made.up_to_date == (operator is SETTINGS)
    assert made.problems == ()
    assert child(made, "ConfigMap")["data"].keys() == {one["name"] for one in after}
    done = apply(edited, made)
    assert settled(make(done, operator), done)


def test_a_premerged_adapter_is_only_in_the_pod_template() -> None:
    observed = running(lora=lora(LEGAL, preMerge=True))
    made = make(observed)
    merged = {"--use-lora=true", "--lora-path=hf://org/legal@v2", "--pre-merge-lora=true", "--served-model-name=legal"}
    assert merged < set(container(made)["args"])
    assert "--lora-config" not in str(container(made)["args"])
    assert "ConfigMap" not in kinds(made)
    assert "adapters" not in volumes(made)
    assert template(make(edit(observed, lora=lora({**LEGAL, "revision": "v3"}, preMerge=True)))) != template(made)
    assert "AdaptersLoaded" not in judge(observed)


def test_a_list_that_pods_still_mount_is_not_deleted() -> None:
    observed = running(lora=lora(ROMAN))
    gone = replace(edit(observed, lora=None), pods=[pod(observed)])
    assert LIST_HASH not in make(gone).delete
    assert LIST_HASH in make(replace(gone, pods=())).delete


def pinned(observed: Observed, **spec: Any) -> Observed:
    """Returns the observed state with other members in the spec of the recorded revision."""
    pin = next(obj for obj in observed.children.values() if obj["kind"] == "ControllerRevision")
    data = {**pin["data"], "spec": {**pin["data"]["spec"], **spec}}
    return replace(observed, children={**observed.children, Ref.of(pin): {**pin, "data": data}})


def test_a_list_of_another_version_stays_unchanged_and_the_rest_is_reconciled() -> None:
    """Running pods keep the template of their revision, although the operator cannot parse its adapters."""
    odd = lora({**ROMAN, "name": "a/b of tomorrow"})
    scaled = edit(pinned(running(lora=lora(ROMAN), replicas=1), lora=odd), lora=odd, replicas=3)
    made = make(scaled)
    assert child(made, "Deployment")["spec"]["replicas"] == 3
    assert template(made) == template(make(running(lora=lora(ROMAN))))
    assert LIST_HASH not in made.delete
    assert "spec.lora.adapters[0].name" in made.unread["lora"]
    assert LIST_HASH not in last_accepted(scaled, SETTINGS).delete


# -- status


def pod(observed: Observed, name: str = "p1", ready: bool = True) -> Obj:
    main = {"name": "main", "started": True, "ready": ready, "state": {"running": {}}}
    conditions = [{"type": "Ready", "status": str(ready)}]
    state = {"phase": "Running", "podIP": "10.0.0.1", "conditions": conditions, "containerStatuses": [main]}
    made = make_pod(observed, state)
    return {**made, "metadata": {**made["metadata"], "name": name, "uid": name}}


def word(state: str, uri: str = "demo://roman", message: str = "") -> Adapter:
    return Adapter(uri, state, message)


READY = word("ready")
LEGAL_READY = word("ready", "hf://org/legal@v2")


def seen(*adapters: Obj, ready: tuple[bool, ...] = (True, True), **reported: dict[str, Adapter]) -> Observed:
    """Returns the state of a resource with a pod p1, p2, ... per element of `ready`, and their reports."""
    observed = running(lora=lora(*adapters), replicas=len(ready))
    pods = [pod(observed, f"p{i}", one) for i, one in enumerate(ready, start=1)]
    return replace(observed, pods=pods, adapters=reported)


def entries(observed: Observed) -> Any:
    return status(observed, make(observed)).get("adapters")


def counts(name: str, ready: int, total: int, failed: int = 0, **more: str) -> Obj:
    return {"name": name, "ready": ready, "total": total, "failed": failed, **more}


BOTH = {"roman": READY, "legal": LEGAL_READY}
WRONG = word("failed", message="tensor 'x' is none of this model's")
FAILS = {"roman": WRONG, "legal": LEGAL_READY}


@pytest.mark.parametrize(
    ("observed", "expected", "says"),
    [
        (seen(ROMAN, LEGAL, p1=BOTH, p2=BOTH), [counts("roman", 2, 2), counts("legal", 2, 2)], "True Loaded"),
        (seen(ROMAN, LEGAL, p1=FAILS, p2=FAILS),
         [counts("roman", 0, 2, 2, message=WRONG.message), counts("legal", 2, 2)],
         f"False AdapterFailed roman in 2 of 2 pods: {WRONG.message}"),
        *((seen(ROMAN, p1={"roman": READY}, p2=second), [counts("roman", 1, 2)], "False Loading roman")
          for second in ({}, {"roman": word("loading")}, {"roman": word("ready", "hf://a/before")})),
        # a failure of an earlier uri
        (seen(ROMAN, ready=(True,), p1={"roman": word("failed", "demo://a")}), [counts("roman", 0, 1)],
         "False Loading"),
        # Pods that are not Ready or have not reported do not count, so that scaling up changes no condition.
        (seen(ROMAN, ready=(True, False, True), p1={"roman": READY}, p2={"roman": word("loading")}),
         [counts("roman", 1, 1)], "True Loaded"),
    ],
)  # fmt: skip
def test_adapters_are_loaded_when_every_ready_pod_that_reported_serves_them(
    observed: Observed, expected: Any, says: str
) -> None:
    assert entries(observed) == expected
    found = judge(observed)
    check(found, f"AdaptersLoaded {says}")
    del found["AdaptersLoaded"]
    others = judge(replace(observed, adapters={}))
    assert {kind: found[kind]["status"] for kind in found} == {kind: others[kind]["status"] for kind in found}


def test_a_new_leader_repeats_the_status_until_a_pod_reports() -> None:
    observed = seen(ROMAN, p1={"roman": READY}, p2={"roman": READY})
    before = status(observed, make(observed))
    new = replace(observed, adapters={}, resource={**observed.resource, "status": before})
    assert status(new, make(new)) == before
    more = edit(new, lora=lora(ROMAN, LEGAL))
    assert [one["total"] for one in entries(more)] == [2, 0]
    gone = replace(new, pods=())
    assert entries(gone) == [{"name": "roman", "ready": 0, "total": 0, "failed": 0}]


@pytest.mark.parametrize("change", [{"suspend": True}, {"replicas": 0}, {"lora": None}, {"lora": {"maxAdapters": 2}}])
def test_without_adapters_the_status_has_none(change: Obj) -> None:
    observed = replace(edit(seen(ROMAN, p1={"roman": READY}, p2={"roman": READY}), **change), pods=())
    observed = apply(observed, make(observed))
    assert entries(observed) is None
    assert "AdaptersLoaded" not in judge(observed)


def test_events_are_emitted_for_changes_only() -> None:
    failed = {"roman": word("failed", message="why")}

    def reasons(*steps: Observed) -> list[str]:
        states = [status(one, make(one)) for one in steps]
        every = [transitions(old, new) for old, new in pairwise(states)]
        return [f"{event.type} {event.reason}" for one in every for event in one if "dapter" in event.reason]

    loading, broken, well = (seen(ROMAN, ready=(True,), p1=reported) for reported in ({}, failed, {"roman": READY}))
    assert reasons(loading, broken, broken, well, well) == ["Warning AdapterFailed", "Normal AdaptersLoaded"]
    assert reasons(well, loading, loading) == []


# -- the annotation that makes kubelets update the list


def behind(observed: Observed) -> list[str]:
    return [pod["metadata"]["name"] for pod in adapters.outdated_pods(observed)]


def test_ready_pods_are_notified_once_of_every_list() -> None:
    observed = seen(ROMAN, ready=(True, False, True), p1={"roman": READY})
    assert behind(observed) == ["p1", "p3"], "a pod that is not Ready mounts the current list at its start"
    for one in (observed.pods[0], observed.pods[2]):
        one["metadata"]["annotations"] = {adapters.LIST_HASH: adapters.list_hash(observed)}
    assert behind(observed) == []
    for listed_adapters in ((ROMAN, LEGAL), (LEGAL,), ()):
        edited = edit(observed, lora=lora(*listed_adapters))
        assert behind(edited) == [], "pods are due for an annotation before the list is written"
        assert behind(apply(edited, make(edited))) == ["p1", "p3"]


def test_pods_that_terminate_or_follow_no_list_are_not_notified() -> None:
    observed = seen(ROMAN, ready=(True, True))
    first, second = observed.pods
    first["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    second["spec"]["volumes"] = []
    assert behind(observed) == []
    without = {ref: child for ref, child in observed.children.items() if ref != LIST_HASH}
    assert behind(replace(seen(ROMAN), children=without)) == []


def serving(**spec: Any) -> FakeApi:
    """Returns an API server with two pods that serve one adapter, after this edit."""
    return FakeApi(edit(seen(ROMAN, p1={"roman": READY}, p2={"roman": READY}), **spec))


def notified(api: FakeApi) -> list[str]:
    return [obj["metadata"]["name"] for obj in api.written("annotate")]


def test_a_list_is_written_before_pods_are_notified() -> None:
    api = serving(lora=lora(ROMAN, LEGAL))
    assert api.reconcile().requeue_after == adapters.PAUSE_SECONDS
    assert notified(api) == []
    assert "legal" in api.cache.children(KEY)[LIST_HASH]["data"]
    assert api.reconcile().requeue_after is None
    assert notified(api) == ["p1", "p2"]
    api.reconcile()
    assert notified(api) == ["p1", "p2"], "the next reconcile annotated pods again"


@pytest.mark.parametrize(
    ("error", "is_logged"),
    [(ApiError(403, "Forbidden", "may not patch pods/status"), True), (ApiError(404, "NotFound", "gone"), False)],
)
def test_a_pod_that_cannot_be_notified_delays_nothing(error: ApiError, is_logged: bool, caplog: Any) -> None:
    api = serving()
    api.wrong = lambda verb, obj: error if verb == "annotate" and obj["metadata"]["name"] == "p1" else None
    api.reconcile()
    assert not api.reconcile().refused
    assert set(notified(api)) == {"p2"}
    assert ("cannot annotate pod p1, its adapters are updated within 90 s: may not patch" in caplog.text) == is_logged

"""Tests of adapters: the pod template, the list that pods follow, and the state that they report."""

from __future__ import annotations

import copy
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from runtime.config.validation import check_adapter_name
from runtime.server.engine_client.adapter_registry import read_lora_config
from tests.operator.samples import (
    SETTINGS,
    apply,
    child,
    container,
    edit,
    kinds,
    make,
    observe,
    resource,
    running,
    settled,
    template,
)
from tests.operator.test_revisions import NEW
from unmask_operator.api import parse
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
    assert listed["data"] == {
        "roman": "demo://roman", "legal": "hf://org/legal@v2", "chess": "/mnt/adapters/tuned/chess/v1",
    }  # fmt: skip
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
    made = make(running(model={"uri": "pvc://tuned/base"}, lora=lora(CHESS, claimNames=["tuned"])))
    assert "--model=/mnt/model/base" in container(made)["args"]
    paths = [one["mountPath"] for one in container(made)["volumeMounts"]]
    assert len(set(paths)) == len(paths)
    alone = make(running(model={"uri": "pvc://tuned/base"}, lora=lora(CHESS)))
    assert mounts(alone).items() >= {"/mnt/model": "model", "/mnt/adapters/tuned": "model"}.items()
    assert child(alone, "ConfigMap")["data"] == {"chess": "/mnt/adapters/tuned/chess/v1"}
    without = make(running(model={"uri": "pvc://tuned/base"}))
    assert "/mnt/adapters/tuned" not in mounts(without)


def test_lora_limits_are_in_the_pod_template_also_without_adapters() -> None:
    made = make(running(lora={"maxAdapters": 3, "maxRank": 32}))
    assert {"--max-loras=3", "--max-lora-rank=32", "--lora-config=/etc/unmask/adapters"} <= set(container(made)["args"])
    assert child(made, "ConfigMap")["data"] == {}
    assert "lora" not in str(container(make(running()))["args"])
    assert "ConfigMap" not in kinds(make(running()))


LORA_LIMITS = {"claimNames": ["tuned"], "maxAdapters": 2}
EDITS = {
    "the first one": ((), (ROMAN,)),
    "one more": ((ROMAN,), (ROMAN, CHESS)),
    "one less": ((ROMAN, LEGAL), (LEGAL,)),
    "the last goes": ((ROMAN,), ()),
    "another revision": ((LEGAL,), ({**LEGAL, "revision": "v3"},)),
    "another place": ((ROMAN,), ({**ROMAN, "uri": "hf://org/roman"},)),
}


@pytest.mark.parametrize(("before", "after"), EDITS.values(), ids=EDITS)
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


@pytest.mark.parametrize(
    "change", [{"maxAdapters": 3}, {"maxRank": 64}, {"claimNames": ["tuned", "more"]}, {"preMerge": True}]
)
def test_a_change_of_the_lora_limits_changes_the_pods(change: Obj) -> None:
    observed = running(lora=lora(ROMAN))
    assert template(make(edit(observed, lora=lora(ROMAN, **change)))) != template(make(observed))


def test_a_premerged_adapter_is_only_in_the_pod_template() -> None:
    observed = running(lora=lora(LEGAL, preMerge=True))
    made = make(observed)
    arguments = {
        "--use-lora=true",
        "--lora-path=hf://org/legal@v2",
        "--pre-merge-lora=true",
        "--served-model-name=legal",
    }
    assert arguments < set(container(made)["args"])
    assert "--lora-config" not in str(container(made)["args"])
    assert "ConfigMap" not in kinds(made)
    assert "adapters" not in volumes(made)
    assert template(make(edit(observed, lora=lora({**LEGAL, "revision": "v3"}, preMerge=True)))) != template(made)
    assert "AdaptersLoaded" not in conditions(observed)


def test_a_list_that_pods_still_mount_is_not_deleted() -> None:
    observed = running(lora=lora(ROMAN))
    pods = [pod(observed)]
    gone = replace(edit(observed, lora=None), pods=pods)
    assert LIST_HASH not in make(gone).delete
    assert LIST_HASH in make(replace(gone, pods=())).delete


def test_a_list_of_another_version_stays_unchanged_and_the_rest_is_reconciled() -> None:
    """Checks that running pods keep the template of their revision, although the operator cannot parse its adapters."""
    observed = running(lora=lora(ROMAN), replicas=1)
    odd = {**ROMAN, "name": "a/b of tomorrow"}
    pin = next(obj for obj in observed.children.values() if obj["kind"] == "ControllerRevision")
    data = {**pin["data"], "spec": {**pin["data"]["spec"], "lora": lora(odd)}}
    observed = replace(observed, children={**observed.children, Ref.of(pin): {**pin, "data": data}})
    scaled = edit(observed, lora=lora(odd), replicas=3)
    made = make(scaled)
    assert child(made, "Deployment")["spec"]["replicas"] == 3
    assert template(made) == template(make(running(lora=lora(ROMAN))))
    assert LIST_HASH not in made.delete
    assert "spec.lora.adapters[0].name" in made.unread["lora"]
    assert LIST_HASH not in last_accepted(scaled, SETTINGS).delete


def test_the_list_is_rendered_next_to_a_section_that_only_another_version_knows() -> None:
    """Checks that pods keep their adapters, although the spec of their revision has an unknown decoding strategy."""
    tomorrow = {"decodingStrategy": "OfTomorrow"}
    observed = running(lora=lora(ROMAN))
    pin = next(obj for obj in observed.children.values() if obj["kind"] == "ControllerRevision")
    data = {**pin["data"], "spec": {**pin["data"]["spec"], "engine": tomorrow}}
    observed = replace(observed, children={**observed.children, Ref.of(pin): {**pin, "data": data}})
    made = make(edit(observed, engine=tomorrow))
    assert child(made, "ConfigMap")["data"] == {"roman": "demo://roman"}
    assert made.delete == ()


def test_an_unknown_scheme_is_passed_to_the_engine() -> None:
    made = make(running(lora=lora({"name": "far", "uri": "s3://bucket/far"}, ROMAN)))
    assert child(made, "ConfigMap")["data"] == {"far": "s3://bucket/far", "roman": "demo://roman"}


# -- status


def pod(observed: Observed, name: str = "p1", ready: bool = True) -> Obj:
    made = copy.deepcopy(template(make(observed)))
    meta = {**made["metadata"], "name": name, "uid": name, "creationTimestamp": "2026-01-01T00:00:00Z"}
    main = {"name": "main", "started": True, "ready": ready, "state": {"running": {}}}
    reported = [{"type": "Ready", "status": str(ready)}]
    state = {"phase": "Running", "podIP": "10.0.0.1", "conditions": reported, "containerStatuses": [main]}
    return {**made, "metadata": meta, "status": state}


def word(state: str, uri: str = "demo://roman", message: str = "") -> Adapter:
    return Adapter(uri, state, message)


READY = word("ready")
LEGAL_READY = word("ready", "hf://org/legal@v2")


def seen(*adapters: Obj, ready: tuple[bool, ...] = (True, True), **reported: dict[str, Adapter]) -> Observed:
    """Returns the observed state of a resource with a pod per element of `ready`, named p1, p2 and so on.

    `reported` has the states of the adapters by pod.
    """
    observed = running(lora=lora(*adapters), replicas=len(ready))
    pods = [pod(observed, f"p{i}", one) for i, one in enumerate(ready, start=1)]
    return replace(observed, pods=pods, adapters=reported)


def conditions(observed: Observed) -> dict[str, Obj]:
    return {one["type"]: one for one in status(observed, make(observed))["conditions"]}


def entries(observed: Observed) -> Any:
    return status(observed, make(observed)).get("adapters")


def test_adapters_that_every_pod_serves_are_loaded() -> None:
    observed = seen(ROMAN, LEGAL, p1={"roman": READY, "legal": LEGAL_READY}, p2={"roman": READY, "legal": LEGAL_READY})
    assert entries(observed) == [
        {"name": "roman", "ready": 2, "total": 2, "failed": 0},
        {"name": "legal", "ready": 2, "total": 2, "failed": 0},
    ]
    found = conditions(observed)["AdaptersLoaded"]
    assert (found["status"], found["reason"]) == ("True", "Loaded")


def test_a_wrong_adapter_is_reported_and_does_not_change_readiness() -> None:
    wrong = word("failed", message="tensor 'x' is none of this model's")
    observed = seen(ROMAN, LEGAL, p1={"roman": wrong, "legal": LEGAL_READY}, p2={"roman": wrong, "legal": LEGAL_READY})
    assert entries(observed)[0] == {
        "name": "roman", "ready": 0, "total": 2, "failed": 2, "message": "tensor 'x' is none of this model's",
    }  # fmt: skip
    found = conditions(observed)
    assert found["AdaptersLoaded"]["status"] == "False"
    assert found["AdaptersLoaded"]["reason"] == "AdapterFailed"
    assert "roman in 2 of 2 pods: tensor 'x' is none" in found["AdaptersLoaded"]["message"]
    without = conditions(seen(LEGAL, p1={"legal": LEGAL_READY}, p2={"legal": LEGAL_READY}))
    assert {kind: one["status"] for kind, one in found.items() if kind != "AdaptersLoaded"} == {
        kind: one["status"] for kind, one in without.items() if kind != "AdaptersLoaded"
    }


@pytest.mark.parametrize("second", [{}, {"roman": word("loading")}, {"roman": word("ready", "hf://a/before")}])
def test_an_adapter_that_some_pod_does_not_serve_yet_is_loading(second: dict[str, Adapter]) -> None:
    observed = seen(ROMAN, p1={"roman": READY}, p2=second)
    assert entries(observed) == [{"name": "roman", "ready": 1, "total": 2, "failed": 0}]
    found = conditions(observed)["AdaptersLoaded"]
    assert (found["status"], found["reason"]) == ("False", "Loading")
    assert "roman" in found["message"]


def test_a_failure_of_an_earlier_uri_does_not_count() -> None:
    observed = seen(ROMAN, ready=(True,), p1={"roman": word("failed", "hf://a/before", "gone")})
    assert entries(observed) == [{"name": "roman", "ready": 0, "total": 1, "failed": 0}]


def test_pods_that_are_not_ready_or_have_not_reported_do_not_count() -> None:
    """Checks this so that scaling up changes no condition.

    The runtime becomes ready only after it has tried to load its list.
    """
    observed = seen(ROMAN, ready=(True, False, True), p1={"roman": READY}, p2={"roman": word("loading")})
    assert entries(observed) == [{"name": "roman", "ready": 1, "total": 1, "failed": 0}]
    assert conditions(observed)["AdaptersLoaded"]["status"] == "True"


def written(observed: Observed) -> Observed:
    return replace(observed, resource={**observed.resource, "status": status(observed, make(observed))})


def test_a_new_leader_repeats_the_status_until_a_pod_reports() -> None:
    observed = written(seen(ROMAN, p1={"roman": READY}, p2={"roman": READY}))
    new = replace(observed, adapters={})
    assert status(new, make(new)) == observed.resource["status"]
    more = edit(new, lora=lora(ROMAN, LEGAL))
    assert [one["total"] for one in entries(more)] == [2, 0]
    gone = replace(new, pods=())
    assert entries(gone) == [{"name": "roman", "ready": 0, "total": 0, "failed": 0}]


@pytest.mark.parametrize("change", [{"suspend": True}, {"replicas": 0}, {"lora": None}, {"lora": {"maxAdapters": 2}}])
def test_without_adapters_the_status_has_none(change: Obj) -> None:
    observed = edit(seen(ROMAN, p1={"roman": READY}, p2={"roman": READY}), **change)
    observed = replace(observed, pods=())
    observed = apply(observed, make(observed))
    assert entries(observed) is None
    assert "AdaptersLoaded" not in conditions(observed)


def test_events_are_emitted_for_changes_only() -> None:
    failed = {"roman": word("failed", message="why")}

    def reasons(*steps: Observed) -> list[str]:
        states = [status(one, make(one)) for one in steps]
        every = [transitions(old, new) for old, new in pairwise(states)]
        return [f"{event.type} {event.reason}" for one in every for event in one if "dapter" in event.reason]

    loading, broken, well = (seen(ROMAN, ready=(True,), p1=reported) for reported in ({}, failed, {"roman": READY}))
    assert reasons(loading, broken, broken, well, well) == ["Warning AdapterFailed", "Normal AdaptersLoaded"]
    assert reasons(well, loading, loading) == []


def test_many_failed_adapters_fit_the_status() -> None:
    many = [{"name": f"a{n}", "uri": "demo://x"} for n in range(256)]
    reported = {one["name"]: word("failed", "demo://x", "y" * 1024) for one in many}
    observed = seen(*many, ready=(True,), p1=reported)
    assert len(entries(observed)) == 256
    assert max(len(one["message"]) for one in entries(observed)) == 512
    message = conditions(observed)["AdaptersLoaded"]["message"]
    assert len(message) <= 1024
    assert parse(observed.resource).spec.lora is not None


def test_the_models_commit_is_reported_next_to_a_list() -> None:
    """Checks that two ConfigMaps do not get mixed up: that of the commit and that of the list."""
    observed = observe(resource(model={"uri": "hf://org/name"}, lora=lora(ROMAN)))
    observed = apply(observed, make(observed))
    made = make(observed)
    assert [c["metadata"]["name"] for c in made.children if c["kind"] == "ConfigMap"] == ["demo-model", "demo-adapters"]
    one = pod(observed)
    observed = replace(observed, pods=[one], revisions={"p1": "a" * 40}, adapters={"p1": {"roman": READY}})
    observed = apply(observed, make(observed))
    assert status(observed, make(observed))["model"] == {"revision": "a" * 40}
    assert settled(make(observed), observed)

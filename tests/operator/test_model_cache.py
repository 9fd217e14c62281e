"""Tests of spec.modelCache.pvc: the claim, the Job that downloads the model, and pods that wait for it."""

import copy
import hashlib
import json
from dataclasses import replace
from typing import Any

import pytest

from runtime.weights import snapshots
from tests.operator import samples
from tests.operator.fake_api import FakeApi
from tests.operator.samples import apply, child, container, edit, kinds, make, observe, resource, restarted, template
from unmask_operator.objects import Obj, Ref
from unmask_operator.plan.observed import FetchReport, Load, Observed
from unmask_operator.plan.plan import Plan
from unmask_operator.render.labels import is_own
from unmask_operator.settings import Settings
from unmask_operator.status import status

SETTINGS = Settings(model_cache=True)
A, B = "a" * 40, "b" * 40
HUB = {"uri": "hf://org/name", "tokenSecretRef": {"name": "hub", "key": "token"}}
KEY = hashlib.sha256(b"hf://org/name").hexdigest()[:16]
SIZE, NAMED = {"pvc": {"size": "100Gi"}}, {"pvc": {"claimName": "shared", "subPath": "a/b"}}
CLAIM, DEPLOYMENT = Ref("v1", "PersistentVolumeClaim", "demo-models"), Ref("apps/v1", "Deployment", "demo")
SHARED: Obj = {
    "apiVersion": "v1", "kind": "PersistentVolumeClaim", "spec": {"accessModes": ["ReadWriteMany"]},
    "metadata": {"name": "shared", "namespace": "default", "uid": "uid-shared"},
}  # fmt: skip


def step(observed: Observed) -> Observed:
    """Returns the state after a reconcile, in which new objects have a uid."""
    after = apply(observed, make(observed, SETTINGS))
    for ref, obj in after.children.items():
        obj["metadata"].setdefault("uid", f"uid-{ref.name}")
    return after


def settle(observed: Observed) -> Observed:
    for _ in range(3):
        observed = step(observed)
    return observed


def jobs(observed: Observed) -> list[Obj]:
    return [obj for ref, obj in observed.children.items() if ref.kind == "Job"]


def pod(code: int | None = None, message: Obj | None = None, **members: Any) -> Obj:
    """Returns a pod of a Job. With a code it has ended."""
    ended = {"exitCode": code, "reason": "Error" if code else "Completed", "message": json.dumps(message or {})}
    state = {"containerStatuses": [{"name": "fetch", "state": {"terminated": ended}}]} if code is not None else {}
    meta = {"name": "fetch-pod", "creationTimestamp": "2026-01-02T03:00:05Z"}
    return {"metadata": meta, "spec": {}, "status": {"phase": "Running", **state, **members}}


def report(observed: Observed, *pods: Obj, end: str = "", load: Load | None = None, final: bool = True) -> Observed:
    """Returns the state after the only Job has these pods, and has ended as `end`; its pods were read after it."""
    (job,) = copy.deepcopy(jobs(observed))
    if end:
        times = {"startTime": "2026-01-02T03:00:00Z", "completionTime": "2026-01-02T03:01:01Z"}
        job["status"] = {"conditions": [{"type": end, "status": "True", "reason": "BackoffLimitExceeded"}], **times}
    fetches = {job["metadata"]["uid"]: FetchReport(pods, load, final=bool(end) and final)}
    return replace(observed, children={**observed.children, Ref.of(job): job}, fetches=fetches)


def done(observed: Observed, commit: str = A) -> Observed:
    return settle(report(observed, pod(0, {"commit": commit, "bytes": 15 * 10**9, "files": 9}), end="Complete"))


def begun(cache: Obj = SIZE, **spec: Any) -> Observed:
    """Returns the state while the first model of a service is being downloaded."""
    service = resource(**{"model": HUB, "modelCache": cache, **spec})
    return settle(observe(service, claim=SHARED if cache == NAMED else None))


def conditions(observed: Observed) -> tuple[dict[str, Obj], Obj]:
    new = status(observed, make(observed, SETTINGS))
    return {one["type"]: one for one in new["conditions"]}, new


def model(made: Plan) -> str:
    return next(one.removeprefix("--model=") for one in container(made)["args"] if one.startswith("--model="))


@pytest.mark.parametrize(("cache", "path"), [(SIZE, ""), (NAMED, "a/b/")])
def test_pods_are_created_after_the_download_with_its_commit(cache: Obj, path: str) -> None:
    observed = begun(cache)
    assert "Deployment" not in {ref.kind for ref in observed.children}
    assert (CLAIM in observed.children) == (cache == SIZE)
    made = make(done(observed), SETTINGS)
    assert model(made) == f"/mnt/models/{path}{KEY}/{A}"
    assert snapshots.key("hf://org/name@v1") == KEY
    variables = {one["name"]: one.get("value") for one in container(made)["env"]}
    assert variables["HF_HUB_OFFLINE"] == "1"
    assert not {"HF_TOKEN", "MODEL_REVISION"} & variables.keys()
    assert {"name": "models", "mountPath": "/mnt/models", "readOnly": True} in container(made)["volumeMounts"]
    claim = {"claimName": "demo-models" if cache == SIZE else "shared"}
    assert {"name": "models", "persistentVolumeClaim": claim} in template(made)["spec"]["volumes"]
    assert not [one for one in made.children if one["kind"] in ("ConfigMap", "Job")]


def test_a_route_is_created_after_the_first_download() -> None:
    observed, settings = begun(route={"parentRefs": [{"name": "public"}]}), replace(SETTINGS, gateway=True)
    assert "HTTPRoute" not in kinds(make(observed, settings))
    assert "HTTPRoute" in kinds(make(done(observed), settings))


def test_the_job_runs_where_the_engine_does_without_its_gpus_and_labels() -> None:
    scheduling = {
        "tolerations": [{"key": "gpu"}], "runtimeClassName": "nvidia", "priorityClassName": "high",
        "securityContext": {"fsGroup": 7}, "nodeSelector": {"pool": "gpu"},
    }  # fmt: skip
    main = {"name": "main", "env": [{"name": "HF_ENDPOINT", "value": "http://hub"}]}
    extra = {"metadata": {"labels": {"team": "a"}}, "spec": {**scheduling, "containers": [main]}}
    (job,) = jobs(begun(gpu={}, podTemplate=extra, commonLabels={"b": "c"}))
    spec, labels = job["spec"]["template"]["spec"], job["spec"]["template"]["metadata"]["labels"]
    assert {name: spec[name] for name in ("tolerations", "runtimeClassName", "priorityClassName")} == {
        name: scheduling[name] for name in ("tolerations", "runtimeClassName", "priorityClassName")
    }
    assert spec["nodeSelector"] == {"kubernetes.io/os": "linux", "pool": "gpu"}
    assert spec["securityContext"] == {
        "runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}, "fsGroup": 7,
        "fsGroupChangePolicy": "OnRootMismatch",
    }  # fmt: skip
    assert spec["serviceAccountName"] == "demo-engine"
    assert labels["serving.unmask.dev/fetch"] == "demo"
    assert (labels["team"], labels["b"]) == ("a", "c")
    assert not {"serving.unmask.dev/service", "serving.unmask.dev/template"} & labels.keys()
    (fetch,) = spec["containers"]
    assert fetch["resources"] == {"requests": {"cpu": "1", "memory": "2Gi"}}
    env = {one["name"]: one for one in fetch["env"]}
    assert env["HF_ENDPOINT"]["value"] == "http://hub"
    assert env["HF_TOKEN"]["valueFrom"] == {"secretKeyRef": {"name": "hub", "key": "token"}}
    assert fetch["args"][:2] == ["hf://org/name", "--to=/mnt/models"]
    assert "--keep" in fetch["args"]
    (shared,) = jobs(begun(NAMED, model={**HUB, "revision": "v1"}))
    arguments = shared["spec"]["template"]["spec"]["containers"][0]["args"]
    assert arguments[:2] == ["hf://org/name@v1", "--to=/mnt/models/a/b"]
    assert "--keep" not in arguments, "a claim of a user is never cleaned"


@pytest.mark.parametrize("uri", ["s3://bucket/org/name", "gs://bucket/name"])
def test_only_the_job_gets_the_credentials_of_an_object_store(uri: str) -> None:
    secrets = [{"secretRef": {"name": name}} for name in ("proxy", "store")]
    main = {"name": "main", "envFrom": secrets[:1]}
    bucket = {"uri": uri, "credentialsSecretRef": {"name": "store"}}
    observed = begun(model=bucket, podTemplate={"spec": {"containers": [main]}})
    (job,) = jobs(observed)
    (fetch,) = job["spec"]["template"]["spec"]["containers"]
    assert (fetch["args"][:1], fetch["envFrom"]) == ([uri], secrets)
    made = make(done(observed), SETTINGS)
    assert (model(made), container(made)["envFrom"]) == (f"/mnt/models/{snapshots.key(uri)}/{A}", secrets[:1])
    (problem,) = make(observe(resource(model=bucket)), SETTINGS).problems  # an older schema accepts it
    assert problem.message.startswith("spec.modelCache.pvc: is required")


EDITS: dict[str, Obj] = {
    "model": {"model": {"uri": "hf://org/other"}},
    "revision": {"model": {**HUB, "revision": "v2"}},
    "claim": {"modelCache": {"pvc": {"claimName": "shared"}}},
}


@pytest.mark.parametrize("change", EDITS.values(), ids=EDITS)
def test_an_edit_of_the_source_is_downloaded_before_the_rollout(change: Obj) -> None:
    before = done(begun())
    old = make(before, SETTINGS)
    (first,) = jobs(before)
    edited = edit(replace(before, claim=SHARED), **change, replicas=3, service={"port": 81})
    waiting = settle(edited)
    made = make(waiting, SETTINGS)
    assert template(made) == template(old), "pods changed before the download"
    assert child(made, "Deployment")["spec"]["replicas"] == 3
    assert child(made, "Service")["spec"]["ports"][0]["port"] == 81
    assert [job["metadata"]["name"] for job in jobs(waiting)] != [first["metadata"]["name"]]
    assert CLAIM in waiting.children, "a claim is never deleted"
    found, _ = conditions(waiting)
    assert (found["RolloutComplete"]["status"], found["RolloutComplete"]["reason"]) == ("False", "Waiting")
    failed = settle(report(waiting, pod(2, {"reason": "AccessDenied", "message": "no"}), end="Failed"))
    assert template(make(failed, SETTINGS)) == template(old), "a failed download must not change pods"
    newer = A if "modelCache" in change else B  # the same source keeps its commit
    after = done(waiting, newer)
    assert model(make(after, SETTINGS)).endswith(f"/{newer}")

    # Back to the first model: the Job looks at the recorded commit, and does not ask for a newer one.
    back = settle(edit(after, model=HUB, modelCache=SIZE))
    (job,) = jobs(back)
    assert job["metadata"]["name"] == first["metadata"]["name"]
    fetch = job["spec"]["template"]["spec"]["containers"][0]
    assert fetch["args"][0] == f"hf://org/name@{A}"
    assert f"{KEY}/{A}" in fetch["args"]
    assert model(make(done(back), SETTINGS)).endswith(f"{KEY}/{A}")


@pytest.mark.parametrize("change", [{"engine": {"maxNumReqs": 7}}, {"modelCache": {"pvc": {"size": "200Gi"}}}])
def test_an_edit_of_something_else_needs_no_download(change: Obj) -> None:
    before = done(begun())
    after = settle(edit(before, **change))
    assert jobs(after) == jobs(before)
    assert model(make(after, SETTINGS)) == model(make(before, SETTINGS))
    storage = child(make(after, SETTINGS), "PersistentVolumeClaim")["spec"]["resources"]["requests"]["storage"]
    assert storage == change.get("modelCache", SIZE)["pvc"]["size"]
    (new,) = jobs(settle(restarted(after, "today")))
    assert new["metadata"]["name"] != jobs(after)[0]["metadata"]["name"], "a restart resolves the revision again"


def test_children_that_lost_their_owner_can_be_adopted() -> None:
    children = begun().children
    assert {"Job", "PersistentVolumeClaim"} <= {ref.kind for ref in children}
    assert all(is_own(ref, "demo") and not is_own(ref, "dem") for ref in children)


def test_a_claim_that_somebody_enlarged_is_not_shrunk() -> None:
    observed = begun()
    grown = copy.deepcopy(observed.children[CLAIM])
    grown["spec"]["resources"]["requests"]["storage"] = "0.3Ti"
    observed = replace(observed, children={**observed.children, CLAIM: grown})
    assert child(make(observed, SETTINGS), "PersistentVolumeClaim")["spec"] == grown["spec"]
    larger = make(edit(observed, modelCache={"pvc": {"size": "1Ti"}}), SETTINGS)
    assert child(larger, "PersistentVolumeClaim")["spec"]["resources"]["requests"]["storage"] == "1Ti"


def test_a_job_runs_again_if_its_input_changed_or_its_result_is_lost() -> None:
    observed = begun()
    failed = report(observed, pod(2, {"reason": "NotEnoughSpace", "message": "full"}), end="Failed")
    (job,) = jobs(failed)
    assert make(failed, SETTINGS).delete == ()
    grown = copy.deepcopy(failed.children[CLAIM])
    grown["status"] = {"capacity": {"storage": "200Gi"}}
    for change in (
        edit(failed, modelCache={**SIZE, "fetch": {"timeoutSeconds": 99}}),
        edit(failed, model={**HUB, "tokenSecretRef": {"name": "right", "key": "token"}}),
        replace(failed, children={**failed.children, CLAIM: grown}),
        report(observed, end="Complete"),
        edit(report(observed, pod(phase="Pending")), podTemplate={"spec": {"nodeSelector": {"pool": "b"}}}),
    ):
        assert make(change, SETTINGS).delete == (Ref.of(job),)
        (again,) = [one for one in make(step(change), SETTINGS).children if one["kind"] == "Job"]
        assert again["metadata"]["name"] == job["metadata"]["name"]
    just_ended = report(observed, pod(), end="Complete", final=False)
    assert make(just_ended, SETTINGS).delete == (), "its result may be there"
    running = report(observed, pod(), load=Load("download", 10.0))
    assert make(edit(running, modelCache={**SIZE, "fetch": {"timeoutSeconds": 99}}), SETTINGS).delete == ()


# Pods of the Job, how it ended, and status, reason and a part of the message of ModelCached.
UNBOUND = "0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims."
STATES: dict[str, tuple[list[Obj], str, str, str]] = {
    "no pod": ([], "", "Waiting", "kubectl describe job demo-fetch-"),
    "no volume": (
        [pod(phase="Pending", conditions=[{"type": "PodScheduled", "status": "False", "message": UNBOUND}])],
        "", "ClaimPending", "has no volume yet",
    ),
    "no image": (
        [pod(phase="Pending", containerStatuses=[
            {"name": "fetch", "image": "x", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no"}}}])],
        "", "FetchFailed", "image x of container fetch cannot be pulled",
    ),
    "running": ([pod()], "", "Downloading", "is being downloaded: download, 40 %"),
    "attempt": ([pod(), pod(1, {"reason": "FetchFailed", "message": "differs"})], "", "FetchFailed", "attempt 1 of 7"),
    "full": ([pod(2, {"reason": "NotEnoughSpace", "message": "1 GB; enlarge the claim"})], "Failed", "NotEnoughSpace",
             "1 GB; enlarge the claim; to try again without an edit, delete Job demo-fetch-"),
    "killed": ([pod(137, {})], "Failed", "FetchFailed", "exit code 137"),
    "a stranger's answer": ([pod(1, {"reason": "Cached", "message": "x"})], "Failed", "FetchFailed", "x; to try again"),
}  # fmt: skip


@pytest.mark.parametrize("case", STATES)
def test_the_condition_explains_the_download(case: str) -> None:
    pods, end, reason, says = STATES[case]
    load = Load("download", 40.0) if pods and "containerStatuses" not in pods[0]["status"] else None
    found, new = conditions(report(begun(), *pods, end=end, load=load))
    cached = found["ModelCached"]
    assert (cached["status"], cached["reason"]) == ("False", reason)
    assert says in cached["message"]
    assert (found["Ready"]["reason"], found["Ready"]["message"]) == (reason, cached["message"])
    assert found.get("Stalled", {}).get("reason") == (reason if end else None)
    assert new["modelCache"] == {"claim": "demo-models", "key": KEY} | ({"percent": 40} if load else {})


def test_a_missing_claim_is_named_and_looked_for_again() -> None:
    observed = replace(begun(NAMED), claim=None, children={})
    found, _ = conditions(observed)
    assert found["ModelCached"]["reason"] == "ClaimNotFound"
    assert "shared does not exist" in found["Ready"]["message"]
    assert make(observed, SETTINGS).requeue_seconds


def test_a_complete_copy_is_in_the_status_and_stays_there_under_a_new_leader() -> None:
    observed = done(begun())
    _, new = conditions(observed)
    assert new["modelCache"] == {
        "claim": "demo-models", "key": KEY, "commit": A, "bytes": 15 * 10**9, "completedAt": "2026-01-02T03:01:01Z",
        "percent": 100,
    }  # fmt: skip
    later = replace(observed, resource={**observed.resource, "status": new}, fetches={})
    found, again = conditions(later)
    assert again["modelCache"] == new["modelCache"]
    assert (
        f"commit {A} is in PersistentVolumeClaim demo-models, 15.00 GB, after 61 s" == found["ModelCached"]["message"]
    )


@pytest.mark.parametrize(
    ("cache", "modes", "warns"),
    [
        ({"pvc": {"size": "1Gi", "accessModes": ["ReadWriteOnce"]}}, None, True),
        (SIZE, None, False),
        (NAMED, ["ReadWriteOnce"], True),
        (NAMED, ["ReadOnlyMany"], False),
    ],
)
def test_a_claim_for_one_node_and_several_replicas_contradict_each_other(
    cache: Obj, modes: list[str] | None, warns: bool
) -> None:
    observed = begun(cache, replicas=2)
    if modes:
        observed = replace(observed, claim={**SHARED, "spec": {"accessModes": modes}})
    assert (conditions(observed)[0].get("SettingsConsistent", {}).get("reason") == "ClaimOnOneNode") == warns
    single = edit(observed, replicas=1)
    assert "SettingsConsistent" not in conditions(single)[0]


def test_adapters_keep_the_token_because_they_may_come_from_the_hub() -> None:
    made = make(done(begun(lora={})), SETTINGS)
    names = {one["name"] for one in container(made)["env"]}
    assert "HF_TOKEN" in names
    assert "HF_HUB_OFFLINE" not in names


def test_without_the_permissions_a_new_cache_is_refused_and_an_old_one_serves_on() -> None:
    made = make(observe(resource(model=HUB, modelCache=SIZE)))
    (problem,) = made.problems
    assert "set modelCache.enabled of the chart" in problem.message
    observed = done(begun())
    after = make(observed, samples.SETTINGS)
    assert template(after) == template(make(observed, SETTINGS))
    assert after.problems == ()
    assert "Job" not in kinds(after)


def test_events_report_the_start_the_end_and_failures_once() -> None:
    api = FakeApi(begun(), settings=SETTINGS)
    api.observed = report(api.observed, pod())
    api.reconcile()
    (started,) = api.events("FetchStarted")
    assert started["type"] == "Normal"
    (job,) = jobs(api.observed)
    wrong = {"reason": "AccessDenied", "message": "no access"}
    api.observed = replace(api.observed, fetches={job["metadata"]["uid"]: FetchReport((pod(2, wrong),))})
    api.reconcile()
    (failed,) = api.events("FetchFailed")
    assert failed["type"] == "Warning"
    assert failed["note"].startswith("AccessDenied: no access")
    assert not api.events("AccessDenied")

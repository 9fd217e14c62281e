"""ModelCached and status.modelCache: the copy of the model that all pods mount, with spec.modelCache.pvc."""

from unmask_operator.api import Spec
from unmask_operator.api.model_cache import DEFAULT_MODES
from unmask_operator.objects import Obj, seconds, section
from unmask_operator.plan.model_fetch import ModelFetch, finished, results
from unmask_operator.render.model_cache import BACKOFF_LIMIT
from unmask_operator.status.condition import Condition, false, true
from unmask_operator.status.conditions.scheduled import claim_trouble
from unmask_operator.status.pods import pod_status
from unmask_operator.status.status_input import StatusInput
from unmask_operator.status.transitions import FETCH_FAILURES

TYPE = "ModelCached"
FAILED = "FetchFailed"


def evaluate(inputs: StatusInput) -> Condition | None:
    fetch = inputs.plan.fetch
    if fetch is None:
        return None
    if fetch.commit:
        return true("Cached", _sentence(entry(inputs) or {}, fetch.job))
    if fetch.live_claim is None:
        if section(inputs.spec, "modelCache", "pvc").get("claimName"):
            return false("ClaimNotFound", claim=fetch.claim)
        return false("Waiting", f"PersistentVolumeClaim {fetch.claim} is being created")
    if fetch.job is None or "deletionTimestamp" in fetch.job["metadata"] or fetch.delete:
        return false("Waiting", "the Job that downloads the model is being created")
    return _failure(fetch, fetch.job) or _progress(inputs, fetch)


def is_waiting(inputs: StatusInput) -> bool:
    """Returns whether the model of the spec is not in its claim yet, so that no pod of the spec is created."""
    return inputs.plan.fetch is not None and not inputs.plan.fetch.commit


def entry(inputs: StatusInput) -> Obj | None:
    """Returns status.modelCache. A new leader has read no result, so the old one of the same copy stays."""
    fetch = inputs.plan.fetch
    if fetch is None:
        return None
    made: Obj = {"claim": fetch.claim, "key": fetch.key}
    if not fetch.commit:
        load = fetch.report.load if fetch.report else None
        return made | ({"percent": round(load.percent)} if load else {})
    old = section(inputs.observed.resource, "status", "modelCache")
    same = (old.get("claim"), old.get("commit")) == (fetch.claim, fetch.commit)
    size = fetch.result.get("bytes") if fetch.result.get("commit") == fetch.commit else None
    known = {
        "bytes": size if isinstance(size, int) else old.get("bytes") if same else None,
        "completedAt": section(fetch.job or {}, "status").get("completionTime")
        or (old.get("completedAt") if same else None),
    }
    return made | {"commit": fetch.commit, "percent": 100} | {k: v for k, v in known.items() if v is not None}


def shared_by_one_node(spec: Spec, fetch: ModelFetch | None) -> Condition | None:
    """Returns the condition if several pods may need a claim that one node at a time can mount, or None."""
    pvc, most = spec.model_cache.pvc, spec.autoscaling.max_replicas if spec.autoscaling else spec.replicas
    most *= spec.parallelism.nodes
    if pvc is None or most < 2:
        return None
    live = section(fetch.live_claim or {}, "spec") if fetch else {}
    modes = live.get("accessModes") or (pvc.access_modes or DEFAULT_MODES if pvc.size is not None else DEFAULT_MODES)
    if {"ReadWriteMany", "ReadOnlyMany"} & set(modes):
        return None
    return false("ClaimOnOneNode", modes=", ".join(modes), most=most)


def _sentence(cache: Obj, job: Obj | None) -> str:
    size = f", {cache['bytes'] / 1e9:.2f} GB" if "bytes" in cache else ""
    start, end = (section(job or {}, "status").get(member) for member in ("startTime", "completionTime"))
    took = f", after {seconds(start, end):.0f} s" if start and end else ""
    return f"commit {cache.get('commit')} is in PersistentVolumeClaim {cache.get('claim')}{size}{took}"


def _failure(fetch: ModelFetch, job: Obj) -> Condition | None:
    """Returns why the Job, or its last attempt, has failed; None without a failure."""
    attempts, result = list(results(fetch.report)), fetch.result
    ended = section(job, "status").get("conditions") or ()
    failed: Obj = next((one for one in ended if one.get("type") == "Failed" and one.get("status") == "True"), {})
    if not failed and not attempts:
        return None
    reason = result.get("reason") if result.get("reason") in FETCH_FAILURES else FAILED
    message = str(result.get("message") or failed.get("message") or failed.get("reason"))
    if failed.get("reason") == "DeadlineExceeded":
        message = f"the download took longer than spec.modelCache.fetch.timeoutSeconds; raise it ({message})"
    name = job["metadata"]["name"]
    if finished(job):
        return false(str(reason), f"{message}; to try again without an edit, delete Job {name}")
    return false(str(reason), f"{message}; attempt {len(attempts)} of {BACKOFF_LIMIT + 1} failed, another one follows")


def _progress(inputs: StatusInput, fetch: ModelFetch) -> Condition:
    pods = fetch.report.pods if fetch.report else ()
    if not pods:
        name = fetch.job["metadata"]["name"] if fetch.job else ""
        return false("Waiting", f"Job {name} has no pod yet; if this lasts, kubectl describe job {name} says why")
    pod, load = pods[0], fetch.report.load if fetch.report else None
    if trouble := pod_status.trouble(pod):
        return false(FAILED, f"pod {pod_status.name(pod)} does not start: {trouble.message}")
    if message := pod_status.unschedulable(pod):
        claim = claim_trouble(pod, message)
        unbound = claim is not None and claim.reason == "PersistentVolumeClaimUnbound"
        return false("ClaimPending" if unbound else "Waiting", claim.message if claim else message)
    if load is None:
        return false("Downloading", f"pod {pod_status.name(pod)} downloads the model")
    return false("Downloading", f"the model is being downloaded: {load.phase}, {load.percent:.0f} %")

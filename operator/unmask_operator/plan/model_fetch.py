"""Plans the download of a model to a claim. Pods are created from a template only after it.

A Job is immutable: it is created once, and replaced if its input changes before it has succeeded.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from unmask_operator.api import DiffusionLMService
from unmask_operator.kinds import CLAIMS, JOBS
from unmask_operator.objects import Obj, Ref, controller_uid, quantity
from unmask_operator.plan.observed import FetchReport, Observed
from unmask_operator.render import model_cache
from unmask_operator.render.labels import claim_name
from unmask_operator.render.model import COMMIT
from unmask_operator.render.revision import Revision, UnsupportedRevision
from unmask_operator.settings import Settings

Revisions = Sequence[Revision | UnsupportedRevision]


@dataclass(frozen=True)
class ModelFetch:
    """The download of the model of a resource with spec.modelCache.pvc, and the actions that it needs."""

    claim: str  # name of the claim
    key: str  # directory of the repository in the claim
    commit: str  # of the complete copy; "": there is none yet
    live_claim: Obj | None = None
    job: Obj | None = None  # the live Job
    report: FetchReport | None = None
    children: tuple[Obj, ...] = ()
    delete: tuple[Ref, ...] = ()
    keep: tuple[Ref, ...] = field(default=())  # live children that stay as they are

    @property
    def result(self) -> Mapping[str, Any]:
        """The last result of a pod of the Job: commit, bytes and files, or reason and message; {} without one."""
        return next(iter(results(self.report)), {})


def finished(job: Obj) -> str:
    """Returns "Complete" or "Failed"; "" for a Job that is neither."""
    conditions = (job.get("status") or {}).get("conditions") or ()
    ends = (one["type"] for one in conditions if one.get("status") == "True" and one["type"] in ("Complete", "Failed"))
    return next(ends, "")


def results(report: FetchReport | None) -> Iterable[Mapping[str, Any]]:
    """Yields the results of pods that have ended, newest first. Pods are not trusted: others are left out."""
    for pod in report.pods if report else ():
        for container in (pod.get("status") or {}).get("containerStatuses") or ():
            ended = (container.get("state") or {}).get("terminated")
            if container["name"] != model_cache.CONTAINER or not ended:
                continue
            try:
                found = json.loads(ended.get("message") or "")
            except ValueError:
                found = None
            known = isinstance(found, dict) and (COMMIT.fullmatch(str(found.get("commit"))) or "message" in found)
            yield found if known else {"message": f"exit code {ended.get('exitCode')}: {ended.get('reason')}"}


def not_smaller(claim: Obj, live: Obj | None) -> Obj:
    """Returns the rendered claim with the size of the live one if that is larger: claims cannot shrink."""
    size, found = (((one or {}).get("spec") or {}).get("resources") or {} for one in (claim, live))
    wanted, present = ((one.get("requests") or {}).get("storage") for one in (size, found))
    if (quantity(present) or 0) <= (quantity(wanted) or 0):
        return claim
    return {**claim, "spec": {**claim["spec"], "resources": {"requests": {"storage": present}}}}


def cached_commit(
    resource: DiffusionLMService, restarted_at: str, observed: Observed, held: Revision | None, revisions: Revisions
) -> str:
    """Returns the commit of the model in its claim; "" if it is not there yet."""
    source = _source(resource, restarted_at)
    if held and _source_of(held) == source and _claim_of(held, resource.name) == _claim(resource):
        return model_cache.commit_in(held.rendered_pod.template)
    live = _live_claim(resource, observed)
    job = observed.children.get(_job_ref(resource, source, live)) if live else None
    if job is None or controller_uid(job) != resource.uid or finished(job) != "Complete":
        return ""
    found = next(iter(results(observed.fetches.get(job["metadata"]["uid"]))), {})
    return str(found.get("commit") or _recorded(source, revisions))


def model_fetch(
    resource: DiffusionLMService, revision: Revision, observed: Observed, revisions: Revisions, settings: Settings
) -> ModelFetch | None:
    """Plans the download; None if no claim has the model.

    Args:
        resource: the parsed resource.
        revision: of its spec. Its template names no commit if the model is not in the claim yet.
        observed: the observed state.
        revisions: the ControllerRevisions to keep, newest first.
        settings: the operator's settings.
    """
    if (claim := _claim(resource)) is None:
        return None
    template, live = revision.rendered_pod.template, _live_claim(resource, observed)
    found = ModelFetch(claim, model_cache.key(resource.spec.model.uri), model_cache.commit_in(template), live)
    if live is None or not settings.model_cache:
        return found
    source = _source(resource, revision.restarted_at)
    ref = _job_ref(resource, source, live)
    job, capacity = observed.children.get(ref), str(_capacity(live))
    report = observed.fetches.get(job["metadata"]["uid"]) if job else None
    if job and finished(job) == "Complete" and (found.commit or not _is_lost(report)):
        return _with(found, job=job, report=report, keep=(ref,))
    wanted = model_cache.job(
        resource, settings, ref.name, template, _recorded(source, revisions) or resource.spec.model.revision or "",
        [snapshot for one in revisions if (snapshot := _snapshot(one))],
    )  # fmt: skip
    marks = wanted["metadata"]["annotations"]
    marks[model_cache.INPUTS] += f"-{capacity}"
    if job is None:
        return _with(found, children=(wanted,))
    if controller_uid(job) != resource.uid:
        return _with(found, children=(wanted,))  # a conflict of names, which the plan reports
    again = "deletionTimestamp" not in job["metadata"] and _is_outdated(job, marks[model_cache.INPUTS], report)
    return _with(found, job=job, report=report, keep=(ref,), delete=(ref,) if again else ())


def _with(found: ModelFetch, **members: Any) -> ModelFetch:
    return ModelFetch(found.claim, found.key, found.commit, found.live_claim, **members)


def _is_outdated(job: Obj, inputs: str, report: FetchReport | None) -> bool:
    """Returns whether to run a Job again that did not succeed, or whose result was lost.

    A running download is not ended by an edit. A failed one also starts again if the claim has grown.
    """
    old = (job["metadata"].get("annotations") or {}).get(model_cache.INPUTS, "")
    match finished(job):
        case "Complete":
            return _is_lost(report)
        case "Failed":
            return bool(old != inputs)
    runs = report is None or any((pod.get("status") or {}).get("phase") == "Running" for pod in report.pods)
    return not runs and bool(old.partition("-")[0] != inputs.partition("-")[0])


def _is_lost(report: FetchReport | None) -> bool:
    """Returns whether a complete Job has no pod with its result.

    The end of a Job may be known before its pods have been read again.
    """
    return report is not None and report.final and not any(found.get("commit") for found in results(report))


def _claim(resource: DiffusionLMService) -> str | None:
    return model_cache.claim_of(resource.spec, resource.name)


def _live_claim(resource: DiffusionLMService, observed: Observed) -> Obj | None:
    pvc = resource.spec.model_cache.pvc
    if pvc is not None and pvc.claim_name:
        return observed.claim
    live = observed.children.get(CLAIMS.ref(claim_name(resource.name)))
    return live if live and controller_uid(live) == resource.uid else None


def _job_ref(resource: DiffusionLMService, source: str, claim: Obj) -> Ref:
    return JOBS.ref(model_cache.job_name(resource, source, claim["metadata"]["uid"]))


def _capacity(claim: Obj) -> object:
    return ((claim.get("status") or {}).get("capacity") or {}).get("storage", "")


def _source(resource: DiffusionLMService, restarted_at: str) -> str:
    model = resource.spec.model
    return model_cache.source({"uri": model.uri, "revision": model.revision}, restarted_at)


def _source_of(revision: Revision) -> str:
    return model_cache.source((revision.spec or {}).get("model") or {}, revision.restarted_at)


def _claim_of(revision: Revision, name: str) -> str | None:
    pvc = ((revision.spec or {}).get("modelCache") or {}).get("pvc")
    return None if pvc is None else pvc.get("claimName") or claim_name(name)


def _recorded(source: str, revisions: Revisions) -> str:
    """Returns the commit that a revision recorded for a source; "" without one."""
    same = (one for one in revisions if isinstance(one, Revision) and _source_of(one) == source)
    return next((commit for one in same if (commit := model_cache.commit_in(one.rendered_pod.template))), "")


def _snapshot(revision: Revision | UnsupportedRevision) -> str:
    return model_cache.snapshot_in(revision.rendered_pod.template) if isinstance(revision, Revision) else ""

"""AdaptersLoaded and status.adapters: which of the adapters in the spec Ready pods serve, as they report."""

from unmask_operator.objects import Obj, Ref, is_ready, section
from unmask_operator.render.adapters import listed
from unmask_operator.status.condition import Condition, false, few, sentence, true
from unmask_operator.status.status_input import StatusInput

LONGEST_MESSAGE = 512  # characters, per adapter


def entries(inputs: StatusInput) -> list[Obj]:
    """Returns status.adapters: the state of each adapter in the Ready pods that reported.

    Until the first report the old entries stay, because a new leader has not polled the pods yet.
    """
    if inputs.desired_zero:
        return []
    serving = [pod["metadata"]["uid"] for pod in inputs.engines if is_ready(pod)]
    reports = [inputs.observed.adapters[uid] for uid in serving if uid in inputs.observed.adapters]
    old = {entry["name"]: entry for entry in section(inputs.observed.resource, "status").get("adapters") or ()}
    made = []
    for name, uri in _expected(inputs).items():
        if serving and not reports and name in old:
            made.append(old[name])
            continue
        states = [pod[name] for pod in reports if name in pod and pod[name].uri == uri]
        failed = [state.message for state in states if state.state == "failed"]
        entry = {"name": name, "ready": sum(state.state == "ready" for state in states), "total": len(reports)}
        why = {"message": sentence(failed[0])[:LONGEST_MESSAGE]} if failed else {}
        made.append({**entry, "failed": len(failed), **why})
    return made


def evaluate(inputs: StatusInput) -> Condition | None:
    """Evaluates AdaptersLoaded. It is not part of Ready: requests for other adapters and the model are served."""
    every = entries(inputs)
    if not every:
        return None
    if failed := [entry for entry in every if entry["failed"]]:
        failures = [f"{one['name']} in {one['failed']} of {one['total']} pods: {one['message']}" for one in failed]
        return false("AdapterFailed", adapters=few(failures, "; "))
    if pending := [entry["name"] for entry in every if not entry["total"] or entry["ready"] < entry["total"]]:
        return false("Loading", f"not loaded in every pod yet; pods get a change within 90 s: {few(pending)}")
    return true("Loaded", f"every pod serves all {len(every)} adapters")


def _expected(inputs: StatusInput) -> dict[str, str]:
    """Returns the URIs by name: from the planned list, else from the live one."""
    planned = {Ref.of(child): child for child in inputs.plan.children if child["kind"] == "ConfigMap"}
    return listed({**inputs.observed.children, **planned}, inputs.observed.name)

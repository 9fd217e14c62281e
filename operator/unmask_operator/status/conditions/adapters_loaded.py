"""AdaptersLoaded and status.adapters: which of the adapters asked for the Ready pods serve, as they tell."""

from unmask_operator.objects import Obj, Ref
from unmask_operator.render.adapters import listed
from unmask_operator.status.condition import Verdict, no, sentence, yes
from unmask_operator.status.pods import pod_status
from unmask_operator.status.status_input import Facts, section

LONGEST_MESSAGE = 512  # characters, of one adapter
NAMED = 4  # adapters that the condition names


def entries(facts: Facts) -> list[Obj]:
    """How each adapter stands in the pods that are Ready and have told. Until the first of them has told it is as it
    was: a new leader has yet to ask."""
    if facts.idle:
        return []
    serving = [pod["metadata"]["uid"] for pod in facts.pods if pod_status.is_ready(pod)]
    told = [facts.observed.adapters[uid] for uid in serving if uid in facts.observed.adapters]
    old = {entry["name"]: entry for entry in section(facts.observed.service, "status").get("adapters") or ()}
    made = []
    for name, uri in _wanted(facts).items():
        if serving and not told and name in old:
            made.append(old[name])
            continue
        words = [pod[name] for pod in told if name in pod and pod[name].uri == uri]
        failed = [word.message for word in words if word.state == "failed"]
        entry = {"name": name, "ready": sum(word.state == "ready" for word in words), "total": len(told)}
        why = {"message": sentence(failed[0])[:LONGEST_MESSAGE]} if failed else {}
        made.append({**entry, "failed": len(failed), **why})
    return made


def verdict(facts: Facts) -> Verdict | None:
    """Not part of Ready: requests of all other adapters and of the model are served."""
    every = entries(facts)
    if not every:
        return None
    if failed := [entry for entry in every if entry["failed"]]:
        said = [f"{one['name']} in {one['failed']} of {one['total']} pods: {one['message']}" for one in failed]
        return no("AdapterFailed", f"cannot be served: {_few(said, '; ')}")
    if late := [entry["name"] for entry in every if not entry["total"] or entry["ready"] < entry["total"]]:
        return no("Loading", f"not in every pod yet, which a change reaches within a minute and a half: {_few(late)}")
    return yes("Loaded", f"every pod serves all adapters, {len(every)} of them")


def _wanted(facts: Facts) -> dict[str, str]:
    """Where each adapter is, by its name: as planned, or as it is where nothing is planned of them."""
    name = facts.observed.service["metadata"]["name"]
    planned = {Ref.of(child): child for child in facts.plan.children if child["kind"] == "ConfigMap"}
    return listed({**facts.observed.children, **planned}, name)


def _few(words: list[str], between: str = ", ") -> str:
    more = f" and {len(words) - NAMED} more" if len(words) > NAMED else ""
    return between.join(words[:NAMED]) + more

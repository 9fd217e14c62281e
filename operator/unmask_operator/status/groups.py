"""Groups of pods (spec.parallelism.nodes): names their members, and notices groups that fail again and again."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from unmask_operator.objects import ROLE_LABEL, Obj, is_ready, section, serves
from unmask_operator.status.condition import Condition
from unmask_operator.status.pods import terminations
from unmask_operator.status.pods.pod_status import containers, is_live, name, restarts

LIMIT, WINDOW = 3, timedelta(minutes=10)  # a group that fails more often within the window is unstable
_LWS = "leaderworkerset.sigs.k8s.io"


def in_group(pod: Obj, found: Condition) -> Condition:
    """Adds role and index of a group's pod to the message of a condition."""
    labels = section(pod, "metadata", "labels")
    if ROLE_LABEL not in labels:
        return found
    role = "leader" if serves(pod) else f"worker {labels.get(f'{_LWS}/worker-index')}"
    return replace(found, message=f"{role} of group {_group(pod)}: {found.message}")


def crashing_worker(pod: Obj, pods: Sequence[Obj], now: datetime) -> Condition | None:
    """Returns how a worker last ended that keeps ending before its group has formed, or None.

    Without probes it is Ready as soon as it runs.
    """
    if (
        serves(pod)
        or restarts(pod) < 2
        or any(is_ready(one) and serves(one) and _group(one) == _group(pod) for one in pods)
    ):
        return None
    found = next(_last_ends(pod, now - WINDOW), None)
    return found and in_group(pod, found)


def _group(pod: Obj) -> str:
    return str(section(pod, "metadata", "labels").get(f"{_LWS}/group-index"))


@dataclass
class GroupFailures:
    """Notes when the leader of a group is not Ready any more: a rank of its group has ended.

    The group forms again by itself, mostly without the restart of a container, which Kubernetes would count.
    """

    _ready: set[str] = field(default_factory=set)  # uids of leaders
    _failures: dict[str, list[datetime]] = field(default_factory=dict)  # by uid of the leader

    def observe(self, pods: Sequence[Obj], now: datetime) -> str:
        """Compares the pods with those of the previous call. Returns a message about an unstable group, or ""."""
        leaders = [pod for pod in pods if ROLE_LABEL in section(pod, "metadata", "labels") and serves(pod)]
        live = {pod["metadata"]["uid"]: pod for pod in leaders if is_live(pod)}
        ready = {uid for uid, pod in live.items() if is_ready(pod)}
        for uid in live.keys() & self._ready - ready:
            self._failures.setdefault(uid, []).append(now)
        recent = {uid: [at for at in self._failures.get(uid, ()) if now - at < WINDOW] for uid in live}
        self._ready, self._failures = ready, {uid: times for uid, times in recent.items() if times}
        worst = max(self._failures, key=lambda uid: (len(recent[uid]), uid), default="")
        if not worst or len(recent[worst]) <= LIMIT:
            return ""
        members = [pod for pod in pods if _group(pod) == _group(live[worst])]
        ends = (in_group(pod, end).message for pod in members for end in _last_ends(pod, now - WINDOW))
        cause = next(ends, f"the log of pod {name(live[worst])} has the causes")
        minutes = int(WINDOW.total_seconds() // 60)
        return f"group {_group(live[worst])} failed {len(recent[worst])} times within {minutes} minutes: {cause}"


def _last_ends(pod: Obj, since: datetime) -> Iterator[Condition]:
    """Yields how each container of the pod last ended, if that was after `since`."""
    for container in containers(pod):
        state, last = container.get("state") or {}, container.get("lastState") or {}
        end = state.get("terminated") or last.get("terminated") or {}
        if end.get("finishedAt") and datetime.fromisoformat(end["finishedAt"]) > since:
            yield terminations.ended(pod, container, end)

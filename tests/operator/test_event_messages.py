"""Tests of Events of pods: when they are read, and how they explain a pod whose status does not."""

import asyncio
from datetime import timedelta

import pytest

from tests.operator.pod_states import check, judge
from tests.operator.recorded import NOW, STATES, later, pod, reconcile
from unmask_operator.controller.pod_events import AGAIN_SECONDS, LONGEST_SECONDS, PodEvents, in_order
from unmask_operator.kinds import EVENTS as EVENTS_KIND
from unmask_operator.kube.errors import ApiError
from unmask_operator.objects import Key
from unmask_operator.plan.observed import PodEvent
from unmask_operator.status.pods.event_messages import PATIENCE, is_silent

DEMO = Key("ns", "demo")
SCHEDULED = PodEvent("Scheduled", "Successfully assigned models/demo to gpu-1", warning=False)
MOUNT = PodEvent("FailedMount", 'MountVolume.SetUp failed for volume "ca" : configmap "ca" not found', warning=True)
SLOW = PodEvent("Unhealthy", "Startup probe failed: HTTP probe failed with statuscode: 503", warning=True)
DEAF = PodEvent("Unhealthy", "Liveness probe failed: context deadline exceeded", warning=True)
FAILED = PodEvent("Failed", "Error: what the container's own state says too", warning=True)
STARTUP = "spec.startupProbe ... statuscode: 503"


def killed(probe):
    return PodEvent("Killing", f"Container main failed {probe} probe, will be restarted", warning=False)


def ended(code):
    """Returns a pod whose engine the kubelet has ended and will restart."""
    found = pod("crash_loop")
    last = found["status"]["containerStatuses"][0]["lastState"]["terminated"]
    last |= {"exitCode": code, "message": "last words"}
    return found


def reported(found, *events, stage="progressing", others=()):
    """Returns the conditions of a resource with this pod and its Events."""
    return judge(*reconcile(stage, *others, found, pod_events={found["metadata"]["uid"]: events}))


TAKEN = 'Multi-Attach error for volume "pvc-0b6e" Volume is already used by pod(s) demo-7c9f8d6b5-g5d8s'
ATTACH = PodEvent("FailedAttachVolume", TAKEN, warning=True)
# The kubelet repeats it, so that it is newer than the cause.
TIMEOUT = PodEvent(
    "FailedMount", "Unable to attach or mount volumes: timed out waiting for the condition", warning=True
)
PULLING = PodEvent("Pulling", 'Pulling image "unmask-runtime:0.1.0"', warning=False)
FOREIGN = PodEvent("policy-violation ", "no", warning=True)
ONE_AT_A_TIME = "maxSurge 0, maxUnavailable 1 in spec.rolloutStrategy, or use a ReadWriteMany"


@pytest.mark.parametrize(
    ("found", "events", "says"),
    [
        (pod("creating"), [SCHEDULED, MOUNT], 'FailedMount configmap "ca" not found'),
        (pod("creating"), [SCHEDULED, PULLING, MOUNT], "FailedMount"),
        (pod("creating"), [SCHEDULED, MOUNT, PULLING], "Pending"),
        (pod("creating"), [SCHEDULED], "Pending"),
        (pod("creating"), [FOREIGN], "NotPrepared"),
        (ended(143), [SLOW], "CrashLoopBackOff"),
        *((ended(code), [SLOW, killed("startup")], "StartupProbeFailed " + STARTUP) for code in (0, 137, 143)),
        (ended(0), [DEAF, killed("liveness"), SLOW], "LivenessProbeFailed context deadline exceeded"),
        # the status of a container that failed by itself takes precedence
        (pod("crash_loop"), [SLOW, killed("startup")], "CrashLoopBackOff"),
        (pod("oom_killed"), [SLOW, killed("startup")], "OOMKilled"),
        (pod("secret_missing"), [FAILED], "CreateContainerConfigError"),
        (pod("image_pull"), [FAILED], "ImagePullBackOff"),
    ],
)
def test_events_explain_a_pod_whose_status_does_not(found, events, says):
    conditions = reported(found, *events)
    check(conditions, f"ModelLoaded False {says}")
    if says in ("Pending", "CrashLoopBackOff"):
        assert conditions == reported(found)


def test_a_claim_of_another_node_or_pod_is_named_in_a_rollout():
    found = reported(later("creating"), SCHEDULED, ATTACH, TIMEOUT, stage="surging", others=["ready"])
    says = f"False FailedAttachVolume {TAKEN} ... {ONE_AT_A_TIME}"
    check(found, "Available True", f"ModelLoaded,RolloutComplete,Ready {says}")

    new = later("unschedulable_pvc")
    reason = "node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode"
    new["status"]["conditions"][0]["message"] = f"0/2 nodes are available: 1 {reason}."
    says = f"False PersistentVolumeClaimInUse {reason} ... {ONE_AT_A_TIME}"
    found = reported(new, stage="surging", others=["ready"])
    check(found, f"Scheduled,RolloutComplete,Ready {says}")


@pytest.mark.parametrize("state", STATES)
def test_events_are_read_only_for_pods_whose_status_explains_nothing(state):
    assert is_silent(pod(state), NOW) == (state == "creating")
    began = NOW - timedelta(hours=3) + timedelta(seconds=2)
    assert not is_silent(pod(state), began + PATIENCE)
    assert is_silent(ended(0), began)


class Scene:
    """A pod whose status explains nothing, a fake API server with `events` (None: it rejects lists), and a clock."""

    def __init__(self):
        self.pod = ended(0)
        self.pods, self.events, self.now, self.asked, self.updated = [(DEMO, self.pod)], [], 0.0, 0, []
        self.watcher = PodEvents(self, lambda: self.pods, self.updated.append, lambda: self.now)

    async def list(self, kind, namespace, fields):
        assert (kind, namespace, fields) == (EVENTS_KIND, "ns", f"regarding.uid={self.pod['metadata']['uid']}")
        self.asked += 1
        if self.events is None:
            raise ApiError(403, "Forbidden", "no")
        return self.events, 1

    def poll(self, seconds=AGAIN_SECONDS):
        self.now += seconds
        asyncio.run(self.watcher.poll())
        return self.watcher.events.get(self.pod["metadata"]["uid"], ())


KUBELET = {"reportingController": "kubelet"}
OLD_KUBELET = {"reportingController": "", "deprecatedSource": {"component": "kubelet"}}
EVENTS = [
    OLD_KUBELET | {"type": "Warning", "reason": "B", "note": "b", "deprecatedLastTimestamp": "2030-01-01T00:00:09Z"},
    KUBELET
    | {"type": "Normal", "reason": "A", "note": "a", "eventTime": "2030-01-01T00:00:05.000001Z"}
    | {"regarding": {"fieldPath": "spec.containers{main}"}},
    KUBELET
    | {"reason": "C", "series": {"lastObservedTime": "2030-01-01T00:00:10.5Z"}, "eventTime": "2030-01-01T00:00:01.0Z"},
]


def test_events_of_components_that_prepare_pods_are_sorted_by_time():
    others = [EVENTS[0] | {"reportingController": who} for who in ("default-scheduler", "policy-scanner")]
    found = in_order([*others, *EVENTS, {"reason": "D"}])
    assert found[0] == PodEvent("A", "a", False, "main")
    assert [(event.reason, event.warning) for event in found[1:]] == [("B", True), ("C", False)]


def test_events_are_polled_and_their_changes_are_reported_once():
    scene = Scene()
    assert scene.poll() == ()
    scene.events = EVENTS
    assert scene.poll(1) == ()
    assert len(scene.poll()) == 3
    scene.poll()
    assert (scene.asked, scene.updated) == (2, [DEMO])  # each pause is twice as long as the one before
    scene.poll()
    assert (scene.asked, scene.updated) == (3, [DEMO])
    scene.events = None
    assert len(scene.poll(4 * AGAIN_SECONDS)) == 3  # the last events are retained while the API server rejects the list
    for _ in range(2):
        scene.poll(LONGEST_SECONDS)
    assert scene.asked == 6
    scene.pods = []
    assert scene.poll() == ()
    assert scene.asked == 6

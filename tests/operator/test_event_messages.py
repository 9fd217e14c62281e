"""Tests of Events of pods: when they are read, and how they explain a pod whose status does not."""

import asyncio
from datetime import timedelta

import pytest

from tests.operator.recorded import NOW, STATES, pod, reconcile
from unmask_operator.controller.pod_events import AGAIN_SECONDS, LONGEST_SECONDS, PodEvents, in_order
from unmask_operator.kube.errors import ApiError
from unmask_operator.kube.kinds import EVENTS as EVENTS_KIND
from unmask_operator.objects import Key
from unmask_operator.plan.observed import PodEvent
from unmask_operator.status import status
from unmask_operator.status.pods.event_messages import PATIENCE, is_silent

DEMO = Key("ns", "demo")
SCHEDULED = PodEvent("Scheduled", "Successfully assigned models/demo to gpu-1", warning=False)
MOUNT = PodEvent("FailedMount", 'MountVolume.SetUp failed for volume "ca" : configmap "ca" not found', warning=True)
SLOW = PodEvent("Unhealthy", "Startup probe failed: HTTP probe failed with statuscode: 503", warning=True)
DEAF = PodEvent("Unhealthy", "Liveness probe failed: context deadline exceeded", warning=True)


def killed(probe):
    return PodEvent("Killing", f"Container main failed {probe} probe, will be restarted", warning=False)


def ended(code):
    """Returns a pod whose engine the kubelet has ended and will restart."""
    found = pod("crash_loop")
    last = found["status"]["containerStatuses"][0]["lastState"]["terminated"]
    last |= {"exitCode": code, "message": "last words"}
    return found


def judged(found, *events):
    new = status(*reconcile("progressing", found, pod_events={found["metadata"]["uid"]: events}))
    conditions = {c["type"]: c for c in new["conditions"]}
    assert conditions["Ready"]["message"] == conditions["ModelLoaded"]["message"]
    return conditions["ModelLoaded"]["reason"], conditions["ModelLoaded"]["message"]


def test_a_volume_that_cannot_be_mounted_is_named():
    reason, message = judged(pod("creating"), SCHEDULED, MOUNT)
    assert reason == "FailedMount"
    assert 'configmap "ca" not found' in message


def test_a_claim_that_another_node_has_attached_is_named_in_a_rollout():
    """Checks this although the kubelet repeats its warning about the timeout, so that it is newer than the cause."""
    taken = 'Multi-Attach error for volume "pvc-0b6e" Volume is already used by pod(s) demo-7c9f8d6b5-g5d8s'
    attach = PodEvent("FailedAttachVolume", taken, warning=True)
    vain = "Unable to attach or mount volumes: unmounted volumes=[model]: timed out waiting for the condition"
    events = SCHEDULED, attach, PodEvent("FailedMount", vain, warning=True)
    new = pod("creating", "demo-66d4b7c8f9-aaaaa", "2030-01-01T01:00:00Z")
    known = reconcile("surging", pod("ready"), new, pod_events={new["metadata"]["uid"]: events})
    found = {c["type"]: c for c in status(*known)["conditions"]}
    for condition in ("ModelLoaded", "RolloutComplete", "Ready"):
        assert found[condition]["reason"] == "FailedAttachVolume"
        for text in (taken, "maxSurge 0, maxUnavailable 1 in spec.rolloutStrategy", "ReadWriteMany"):
            assert text in found[condition]["message"]
    assert found["Available"]["status"] == "True"


def test_a_claim_in_use_is_reported_with_the_schedulers_message():
    new = pod("unschedulable_pvc", "demo-66d4b7c8f9-aaaaa", "2030-01-01T01:00:00Z")
    reason = "node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode"
    new["status"]["conditions"][0]["message"] = f"0/2 nodes are available: 1 {reason}."
    found = {c["type"]: c for c in status(*reconcile("surging", pod("ready"), new))["conditions"]}
    for condition in ("Scheduled", "RolloutComplete", "Ready"):
        assert found[condition]["reason"] == "PersistentVolumeClaimInUse"
        assert (
            "maxSurge 0, maxUnavailable 1 in spec.rolloutStrategy, or use a ReadWriteMany"
            in found[condition]["message"]
        )
        assert reason in found[condition]["message"]


def test_a_failed_mount_before_the_image_is_pulled_is_ignored():
    pulling = PodEvent("Pulling", 'Pulling image "unmask-runtime:0.1.0"', warning=False)
    assert judged(pod("creating"), SCHEDULED, MOUNT, pulling) == judged(pod("creating"))
    assert judged(pod("creating"), SCHEDULED, pulling, MOUNT)[0] == "FailedMount"


def test_events_that_explain_nothing_change_nothing():
    assert judged(pod("creating"), SCHEDULED) == judged(pod("creating"))
    assert judged(ended(143), SLOW) == judged(ended(143))


@pytest.mark.parametrize("code", [0, 137, 143])
def test_a_probe_that_ends_the_engine_is_named(code):
    reason, message = judged(ended(code), SLOW, killed("startup"))
    assert reason == "StartupProbeFailed"
    assert "spec.startupProbe" in message
    assert message.endswith("statuscode: 503")
    reason, message = judged(ended(code), DEAF, killed("liveness"), SLOW)
    assert reason == "LivenessProbeFailed"
    assert message.endswith("context deadline exceeded")


def test_the_status_of_an_engine_that_failed_by_itself_takes_precedence_over_events():
    assert judged(pod("crash_loop"), SLOW, killed("startup"))[0] == "CrashLoopBackOff"
    assert judged(pod("oom_killed"), SLOW, killed("startup"))[0] == "OOMKilled"


@pytest.mark.parametrize(
    ("state", "reason"), [("secret_missing", "CreateContainerConfigError"), ("image_pull", "ImagePullBackOff")]
)
def test_the_waiting_reason_of_a_container_takes_precedence_over_events(state, reason):
    assert (
        judged(pod(state), PodEvent("Failed", "Error: what the container's own state says too", warning=True))[0]
        == reason
    )


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
    KUBELET | {"type": "Normal", "reason": "A", "note": "a", "eventTime": "2030-01-01T00:00:05.000001Z"},
    KUBELET
    | {"reason": "C", "series": {"lastObservedTime": "2030-01-01T00:00:10.5Z"}, "eventTime": "2030-01-01T00:00:01.0Z"},
]


def test_events_are_sorted_by_time():
    assert [event.reason for event in in_order(EVENTS)] == ["A", "B", "C"]


def test_only_events_of_components_that_prepare_pods_are_used():
    others = [EVENTS[0] | {"reportingController": who} for who in ("default-scheduler", "policy-scanner")]
    assert in_order([*others, {"reason": "D"}]) == ()


def test_an_event_reason_that_is_invalid_for_conditions_is_replaced():
    assert judged(pod("creating"), PodEvent("policy-violation ", "no", warning=True))[0] == "NotPrepared"


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

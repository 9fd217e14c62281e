"""Tests that no foreign value violates the schema of the status or the limits of an Event."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from tests.operator.fake_api import FakeApi
from tests.operator.pod_states import make_pod
from tests.operator.recorded import STATES, load, pod
from tests.operator.samples import make, observe, resource, running
from tools.crd import schema
from unmask_operator.controller.event_recorder import event_object
from unmask_operator.kube.errors import ApiError
from unmask_operator.objects import Ref
from unmask_operator.plan.observed import Adapter, Decision, Load, Observed, PodEvent
from unmask_operator.status import status
from unmask_operator.status.condition import LONGEST_MESSAGE, false, true, unknown
from unmask_operator.status.limits import EVENT_REASON_LENGTH, conform, minimal, valid_reason
from unmask_operator.status.transitions import Event, transitions

STATUS = schema()["properties"]["status"]
CONDITION = STATUS["properties"]["conditions"]["items"]["properties"]


def violations(schema: dict[str, Any], value: Any) -> Iterator[str]:
    """Yields a sentence per violation. A field that the schema lacks is one, because the API server prunes it."""
    validator = jsonschema_rs.Draft4Validator(_closed(schema), validate_formats=True)  # 1.0 is no integer in Draft 4
    yield from (f"{error.instance_path}: {error.message}" for error in validator.iter_errors(value))
    yield from _repeated_keys(schema, value)


def _closed(node: Any) -> Any:
    if not isinstance(node, dict):
        return node
    closed = {"additionalProperties": False} if "properties" in node else {}
    return {name: _closed(inner) for name, inner in node.items()} | closed


def _repeated_keys(schema: dict[str, Any], value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for name in value.keys() & schema.get("properties", {}).keys():
            yield from _repeated_keys(schema["properties"][name], value[name])
    elif isinstance(value, list) and (names := schema.get("x-kubernetes-list-map-keys")):
        keys = [tuple(entry.get(name) for name in names) for entry in value]
        yield from (f"two entries have the key {key}" for key in keys if keys.count(key) > 1)


REASONS = {
    "OutOfnvidia.com/gpu": "OutOfnvidiaComGpu", "Provider Failed to start": "ProviderFailedToStart",
    "node lost: timeout": "nodeLost:Timeout", "Trailing:": "Trailing", ":leading": "leading",
    "429 Too Many Requests": "Reason429TooManyRequests", "ошибка": "Unknown", "": "Unknown", "a\nb": "aB",
    "Valid_Reason:With,Parts": "Valid_Reason:With,Parts",
}  # fmt: skip


@pytest.mark.parametrize(("reason", "valid"), REASONS.items())
def test_a_foreign_reason_becomes_a_valid_one_and_is_quoted_in_the_message(reason: str, valid: str) -> None:
    assert valid_reason(reason) == valid
    for made in (false(reason, "the pod failed"), unknown(reason, "the pod failed"), true(reason, "the pod failed")):
        assert made.reason == valid
        assert made.message.startswith("the pod failed")
        assert valid == reason or " ".join(reason.split()) in made.message


@given(st.text(max_size=3000))
def test_every_reason_is_valid_for_a_condition_and_an_event(reason: str) -> None:
    valid = valid_reason(reason)
    assert list(violations(CONDITION["reason"], valid)) == []
    assert len(valid.encode()) <= EVENT_REASON_LENGTH
    assert valid_reason(valid) == valid, "a valid reason was changed"


@given(st.text(max_size=3000), st.text(max_size=3000))
def test_a_message_with_the_original_reason_is_bounded(reason: str, message: str) -> None:
    made = false(reason, message)
    assert len(made.message) <= LONGEST_MESSAGE
    made.message.encode()


ANY = st.text(st.characters(), max_size=1200)  # surrogates included, because JSON may contain them
TEXTS = st.one_of(ANY, st.sampled_from([*REASONS, "CrashLoopBackOff", "ErrImagePull", "Evicted", "OOMKilled"]))
BOOLS = st.booleans()
REQUIRED = {"type", "status", "name", "phase", "uid"}  # members that the API server requires or restricts


def foreign(draw: st.DrawFn, value: Any) -> Any:
    """Returns a recorded value with other texts and numbers, and without some members."""
    if isinstance(value, dict):
        left = [member for member in value if member in REQUIRED or draw(st.integers(0, 4))]
        same = {member for member in left if member in REQUIRED or member.endswith(("Time", "At"))}
        return {member: value[member] if member in same else foreign(draw, value[member]) for member in left}
    if isinstance(value, list):
        return [foreign(draw, entry) for entry in value]
    if isinstance(value, str):
        return draw(TEXTS)
    return value if isinstance(value, bool) else draw(st.integers(0, 255))


DEPLOYMENTS = st.sampled_from(sorted(load("deployments").values(), key=str))
PODS = st.sampled_from(STATES).map(lambda state: pod(state)["status"])
UNABLE = {"type": "AbleToScale", "status": "False", "reason": "r", "message": "m"}
ACTIVE = {"type": "ScalingActive", "status": "True", "reason": "r", "message": "m"}
HPA = {"conditions": [UNABLE, ACTIVE]}
SCALING = {"maxReplicas": 3, "targets": {"runningRequestsPerReplica": 8}}
SPECS = st.sampled_from(
    [
        {}, {"autoscaling": SCALING}, {"autoscaling": {**SCALING, "provider": "HPA"}},
        {"lora": {"adapters": [{"name": "a", "uri": "demo://a"}]}}, {"model": {"uri": "hf://org/name"}},
        {"service": {"type": "LoadBalancer"}}, {"gpu": {}},
    ]
)  # fmt: skip
ADAPTER = st.builds(Adapter, st.one_of(ANY, st.just("demo://a")), st.sampled_from(["ready", "failed"]), ANY)
SERVICE = Ref("v1", "Service", "demo")


@st.composite
def states(draw: st.DrawFn) -> Observed:
    """Returns a resource whose children, pods and other sources have arbitrary values of the right types."""
    observed = running(**draw(SPECS))
    for ref, child in observed.children.items():
        child["metadata"] |= {"generation": 1, "uid": f"uid-{ref.kind}"}
        if ref.kind == "Deployment":
            child["status"] = foreign(draw, draw(DEPLOYMENTS))
        if ref.kind == "HorizontalPodAutoscaler":
            child["status"] = foreign(draw, HPA)
    node = st.sampled_from(["n", None])
    pods = [make_pod(observed, foreign(draw, status), draw(node)) for status in draw(st.lists(PODS, max_size=3))]
    for number, one in enumerate(pods):
        one["metadata"] |= {"name": f"demo-p{number}", "uid": f"p{number}"}
    uids = [one["metadata"]["uid"] for one in pods]
    return replace(
        observed, pods=pods, loads={uid: Load(draw(ANY), draw(st.floats(0, 100))) for uid in uids if draw(BOOLS)},
        revisions={uid: draw(ANY) for uid in uids if draw(BOOLS)},
        adapters={uid: {"a": draw(ADAPTER)} for uid in uids if draw(BOOLS)},
        pod_events={uid: draw(st.lists(st.builds(PodEvent, TEXTS, ANY, BOOLS), max_size=3)) for uid in uids},
        decision=draw(st.one_of(st.none(), st.builds(Decision, st.integers(0, 9), ANY, BOOLS))),
        refusals={SERVICE: draw(ANY)} if draw(BOOLS) else {}, failures={SERVICE: draw(ANY)} if draw(BOOLS) else {},
    )  # fmt: skip


@examples(300)
@given(states())
def test_every_status_is_one_that_the_schema_accepts(observed: Observed) -> None:
    new = status(observed, make(observed))
    assert list(violations(STATUS, new)) == []
    assert list(violations(STATUS, minimal(new))) == []
    assert status(observed, make(observed)) == new
    for event in transitions({}, new):
        check_event(event)


@given(st.builds(Event, st.sampled_from(["Normal", "Warning"]), TEXTS, ANY), ANY)
def test_every_event_is_within_the_limits(event: Event, pod_name: str) -> None:
    check_event(event, pod_name)


def check_event(event: Event, pod_name: str = "operator-0") -> None:
    written = event_object(resource(), event, pod_name, datetime.now(UTC))
    for member in ("reason", "action", "reportingController", "reportingInstance"):
        assert len(written[member].encode()) <= 128, member
    assert written["reason"]
    assert len(written["note"].encode()) <= 1024


def test_a_status_with_values_of_any_length_is_made_to_fit() -> None:
    long = "x" * 50_000
    condition = {"status": "True", "reason": long, "message": long, "lastTransitionTime": "2026-01-01T00:00:00Z"}
    entry = {"ready": 0, "total": 0, "failed": 0, "message": long}
    made = conform(
        {
            "conditions": [{**condition, "type": f"Type{n}"} for n in range(40)],
            **dict.fromkeys(("url", "modelName", "currentRevision"), long),
            "model": {"revision": long},
            "resolvedImage": f"registry.example.com/{long}",
            "modelLoad": {"phase": long, "percent": 3},
            "autoscaling": {"desired": 1, "reason": long},
            "adapters": [{**entry, "name": f"{n}{long}"} for n in range(2000)],
        }
    )
    assert list(violations(STATUS, made)) == []
    assert made["resolvedImage"].startswith("registry.example.com/xxx")
    assert made["resolvedImage"].endswith("…")


# -- statuses that are refused nevertheless

REFUSED = ApiError(422, "Invalid", "status.conditions[0].reason: Invalid value")


def refusing(error: ApiError) -> FakeApi:
    """Returns an API server that refuses whole statuses with this error."""
    api = FakeApi(observe(resource(replicas=3)))
    api.wrong = lambda verb, patch: error if verb == "status" and "url" in patch else None
    return api


def count(api: FakeApi) -> float | None:
    return api.metrics.registry.get_sample_value("unmask_operator_status_refusals_total")


@pytest.mark.parametrize(
    "error",
    [
        REFUSED,
        ApiError(403, "Forbidden", "ValidatingAdmissionPolicy 'p' denied request: no url"),
        ApiError(500, "Unknown", "etcdserver: request is too large"),
    ],
    ids=lambda error: str(error.status),
)
def test_a_refused_status_is_replaced_by_a_minimal_one(error: ApiError) -> None:
    api = refusing(error)
    assert api.reconcile().refused, "the refused status is not retried"
    (patch,) = api.written("status")
    counts = {"observedGeneration", "replicas", "readyReplicas", "updatedReplicas"}
    assert patch.keys() == {*counts, "selector", "conditions"}
    assert list(violations(STATUS, patch)) == []
    assert "Ready" in {condition["type"] for condition in patch["conditions"]}
    assert count(api) == 1
    (event,) = api.events("StatusRefused")
    assert error.message in event["note"]
    assert event["type"] == "Warning"


def test_a_refusal_that_lasts_is_reported_once_and_ends() -> None:
    api = refusing(REFUSED)
    for number in (1, 2, 3):
        assert api.reconcile().refused
        assert count(api) == number
    assert len(api.written("status")) == 1, "the minimal status was written more than once"
    assert len(api.events("StatusRefused")) == 1
    api.wrong = lambda verb, patch: None
    assert not api.reconcile().refused
    assert "url" in api.resource["status"]
    api.wrong = lambda verb, patch: REFUSED if verb == "status" else None
    api.edit()
    api.observed = replace(api.observed, now=api.observed.now + timedelta(hours=1))
    with pytest.raises(ApiError, match="Invalid value"):
        api.reconcile()
    assert len(api.events("StatusRefused")) == 2


def test_a_failed_write_of_the_status_is_no_refusal() -> None:
    api = refusing(ApiError(503, "ServiceUnavailable", "later"))
    with pytest.raises(ApiError):
        api.reconcile()
    assert count(api) == 0
    assert api.events("StatusRefused") == []

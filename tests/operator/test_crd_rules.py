"""Tests of the CRD on a real API server: accepted resources parse, and rejected ones get the rule's message."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from e2e.cluster.kube import ApiError
from runtime.config import parse as parse_arguments
from tests.examples import examples
from tests.operator.crd_cases import ALSO_REFUSED, BOUNDS, NAMES_REFUSED, RULES
from tests.operator.test_arguments import SPECS, values
from tests.operator.test_crd import changed
from tests.operator.test_parse import resource
from tools import crd
from unmask_operator.api import parse
from unmask_operator.api.engine import Thresholds
from unmask_operator.render.arguments import engine_arguments
from unmask_operator.settings import Settings

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def definition(admin):
    """Returns the CRD as the API server stores it, after it serves the kind."""
    admin.define(crd.crd())
    return admin.get("apiextensions.k8s.io/v1", "CustomResourceDefinition", crd.NAME)


@pytest.fixture
def dry_run(admin, definition):
    """Returns a function that returns the object as the API server would store it. Fields are validated strictly."""
    return lambda obj: cache(admin, obj, "default", dryRun="All")


@pytest.fixture
def create(admin, definition, namespace):
    """Returns a function that creates a resource in the test's namespace."""
    return lambda obj: cache(admin, obj, namespace)


def cache(admin, obj, namespace, **query):
    metadata = {"name": obj["metadata"]["name"], "namespace": namespace}
    return admin.create({**obj, "metadata": metadata}, fieldValidation="Strict", **query)


def refusal(dry_run, obj):
    with pytest.raises(ApiError) as caught:
        dry_run(obj)
    assert caught.value.status == 422
    return caught.value.message


def test_the_crd_is_accepted_and_structural(definition):
    states = {c["type"]: c["status"] for c in definition["status"]["conditions"]}
    assert states["NamesAccepted"] == "True"
    assert states.get("NonStructuralSchema", "False") == "False"


@pytest.mark.parametrize("case", RULES, ids=lambda case: case.message)
def test_each_rule_accepts_and_rejects(dry_run, case):
    stored = dry_run(changed(case.accept, case.names[0]))
    assert parse(stored).spec == parse(changed(case.accept)).spec  # the API server's defaults equal the operator's
    assert case.message in refusal(dry_run, changed(case.reject, case.names[1]))


@pytest.mark.parametrize(("message", "change"), ALSO_REFUSED)
def test_rules_reject_further_invalid_values(dry_run, message, change):
    assert message in refusal(dry_run, changed(change))


@pytest.mark.parametrize(("field", "change"), BOUNDS)
def test_bounds_are_enforced(dry_run, field, change):
    assert field in refusal(dry_run, changed(change))


@pytest.mark.parametrize("name", NAMES_REFUSED)
def test_patterns_of_names_are_enforced(dry_run, name):
    assert "metadata.name" in refusal(dry_run, changed({}, name))


@examples(200)
@given(SPECS, st.none() | values(Thresholds))
def test_the_operator_and_the_runtime_accept_what_the_api_server_accepts(admin, definition, spec, thresholds):
    if thresholds is not None:
        spec = {**spec, "engine": {**spec.get("engine", {}), "thresholds": thresholds}}
    obj = resource(**spec)
    try:
        stored = cache(admin, obj, "default", dryRun="All")
    except ApiError:
        assume(False)
    service = parse(stored)
    assert service.spec == parse(obj).spec
    parse_arguments(engine_arguments(service, Settings()), {})


def test_unknown_fields_are_named(dry_run):
    with pytest.raises(ApiError, match=r'unknown field "spec\.engine\.enforceEager"'):
        dry_run(changed({"engine": {"enforceEager": True}}))


def test_the_pod_template_is_not_pruned(dry_run):
    template = {"metadata": {"labels": {"a": None}}, "spec": {"tolerations": [{"key": "x", "operator": "Exists"}]}}
    stored = dry_run(changed({"podTemplate": template}))
    assert stored["spec"]["podTemplate"] == template


def test_scale_and_columns(create, admin, namespace):
    stored = create(changed({}))
    assert stored["spec"]["replicas"] == 1
    admin.patch(stored, {"status": {"replicas": 1, "selector": "a=b"}}, subresource="status")
    scale = admin.patch(stored, {"spec": {"replicas": 3}}, subresource="scale")
    assert (scale["spec"]["replicas"], scale["status"]) == (3, {"replicas": 1, "selector": "a=b"})
    path = admin.path(stored["apiVersion"], stored["kind"], namespace)
    table = admin.request("GET", path, accept="application/json;as=Table;v=v1;g=meta.k8s.io")
    assert [c["name"] for c in table["columnDefinitions"]] == ["Name", *(column[0] for column in crd.COLUMNS)]
    row = dict(zip([c["name"] for c in table["columnDefinitions"]], table["rows"][0]["cells"], strict=True))
    assert (row["Model"], row["Desired"]) == ("demo://", 3)


def test_the_api_server_accepts_a_status_of_the_operator(create, admin):
    stored = create(changed({}))
    condition = {
        "type": "Ready", "status": "False", "observedGeneration": 1, "reason": "Loading", "message": "m",
        "lastTransitionTime": "2026-01-02T03:04:05Z",
    }  # fmt: skip
    status = {
        "observedGeneration": 1, "conditions": [condition], "replicas": 1, "readyReplicas": 0, "updatedReplicas": 1,
        "selector": "a=b", "url": "http://demo", "modelName": "demo", "resolvedImage": "x:1",
        "modelLoad": {"phase": "weights", "percent": 40}, "lastScaleTime": "2026-01-02T03:04:05Z",
        "autoscaling": {"desired": 2, "reason": "load"},
        "adapters": [
            {"name": "a", "ready": 1, "total": 2, "failed": 1, "message": "x" * 512},
            {"name": "b", "ready": 2, "total": 2, "failed": 0},
        ],
    }  # fmt: skip
    assert admin.patch(stored, {"status": status}, subresource="status")["status"] == status

"""Tests of the CRD on a real API server: accepted resources parse, and rejected ones get the rule's message."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from e2e.cluster.kube import ApiError
from runtime.config import parse as parse_arguments
from tests.examples import examples
from tests.operator.crd_cases import ALSO_REFUSED, BOUNDS, EDITS, NAMES_REFUSED, RULES, changed
from tests.operator.live.objects import demo
from tests.operator.null_cases import null_cases
from tests.operator.samples import resource
from tests.operator.spec_strategies import SPECS, values
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


def create(admin, obj, namespace="default", **query):
    metadata = {"name": obj["metadata"]["name"], "namespace": namespace}
    return admin.create({**obj, "metadata": metadata}, fieldValidation="Strict", **query)


@pytest.fixture
def dry_run(admin, definition):
    """Returns a function that returns the object as the API server would store it. Fields are validated strictly."""
    return lambda obj: create(admin, obj, dryRun="All")


def refusal(dry_run, obj):
    with pytest.raises(ApiError) as caught:
        dry_run(obj)
    assert caught.value.status == 422
    return caught.value.message


@pytest.mark.parametrize("case", RULES, ids=lambda case: case.message)
def test_each_rule_accepts_and_rejects(dry_run, case):
    stored = dry_run(changed(case.accept, case.names[0]))
    assert parse(stored).spec == parse(changed(case.accept)).spec  # the API server's defaults equal the operator's
    assert case.message in refusal(dry_run, changed(case.reject, case.names[1]))


@pytest.mark.parametrize("message", ALSO_REFUSED)
def test_rules_reject_further_invalid_values(dry_run, message):
    for change in ALSO_REFUSED[message]:
        assert message in refusal(dry_run, changed(change)), change


@pytest.mark.parametrize(("before", "rejected", "accepted"), EDITS)
def test_rules_for_edits_reject_and_accept(admin, definition, namespace, before, rejected, accepted):
    stored = create(admin, changed(before), namespace)

    def edit(change):
        spec = changed(change)["spec"] | {"replicas": 1}
        return admin.patch(stored, [{"op": "replace", "path": "/spec", "value": spec}])

    for change, message in rejected:
        with pytest.raises(ApiError) as caught:
            edit(change)
        assert message in caught.value.message
    for change in accepted:
        assert edit(change)["spec"].get("modelCache") == change.get("modelCache")


def test_bounds_and_patterns_of_names_are_enforced(dry_run):
    for field, change in BOUNDS:
        assert field in refusal(dry_run, changed(change)), change
    for name in NAMES_REFUSED:
        assert "metadata.name" in refusal(dry_run, changed({}, name))


@examples(200)
@given(SPECS, st.none() | values(Thresholds))
def test_the_operator_and_the_runtime_accept_what_the_api_server_accepts(admin, definition, spec, thresholds):
    if thresholds is not None:
        spec = {**spec, "engine": {**spec.get("engine", {}), "thresholds": thresholds}}
    obj = resource(**spec)
    try:
        stored = create(admin, obj, dryRun="All")
    except ApiError:
        assume(False)
    service = parse(stored)
    assert service.spec == parse(obj).spec
    parse_arguments(engine_arguments(service, Settings()), {})


def test_unknown_fields_are_named_and_the_pod_template_is_not_pruned(dry_run):
    with pytest.raises(ApiError, match=r'unknown field "spec\.engine\.enforceEager"'):
        dry_run(changed({"engine": {"enforceEager": True}}))
    template = {"metadata": {"labels": {"a": None}}, "spec": {"tolerations": [{"key": "x", "operator": "Exists"}]}}
    assert dry_run(changed({"podTemplate": template}))["spec"]["podTemplate"] == template


def test_the_definition_its_scale_columns_and_status_are_accepted(admin, definition, namespace):
    states = {c["type"]: c["status"] for c in definition["status"]["conditions"]}
    assert (states["NamesAccepted"], states.get("NonStructuralSchema", "False")) == ("True", "False")
    stored = create(admin, changed({}), namespace)
    assert stored["spec"]["replicas"] == 1
    status = {"selector": "a=b", "replicas": 1, "modelLoad": {"phase": "weights", "percent": 40}}
    assert admin.patch(stored, {"status": status}, subresource="status")["status"] == status
    scale = admin.patch(stored, {"spec": {"replicas": 3}}, subresource="scale")
    assert (scale["spec"]["replicas"], scale["status"]) == (3, {"replicas": 1, "selector": "a=b"})
    path = admin.path(stored["apiVersion"], stored["kind"], namespace)
    table = admin.request("GET", path, accept="application/json;as=Table;v=v1;g=meta.k8s.io")
    names = [column["name"] for column in table["columnDefinitions"]]
    assert names == ["Name", *(column[0] for column in crd.COLUMNS)]
    row = dict(zip(names, table["rows"][0]["cells"], strict=True))
    assert (row["Model"], row["Desired"]) == ("demo://", 3)
    for uri, count in (("demo://", 1), ("hf://a/b", 0)):
        selector = {"fieldSelector": f"spec.model.uri={uri}"}
        assert len(admin.list(stored["apiVersion"], stored["kind"], namespace, **selector)) == count


def test_a_null_is_accepted_where_a_field_may_be_absent_and_rejected_elsewhere(admin, definition):
    wrong = []
    for case in null_cases():
        obj = {**demo("default"), "spec": case.spec}
        try:
            stored = admin.apply(obj, manager="gitops", fieldValidation="Strict", dryRun="All")
        except ApiError as error:
            if case.optional or error.status not in (422, 500):
                wrong.append(f"{case.path}: {error}")
            continue
        if not case.optional or parse(stored).spec != parse({**obj, "spec": case.without}).spec:
            wrong.append(f"{case.path}: {stored['spec']}")
    assert wrong == []

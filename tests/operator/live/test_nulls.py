"""Tests that a real API server accepts a null wherever a field may be absent, on create and on server-side apply."""

from __future__ import annotations

import pytest

from e2e.cluster import ApiError
from tests.operator.live.objects import demo, read, wait_condition
from tests.operator.null_cases import null_cases
from tools import crd
from unmask_operator.api import parse
from unmask_operator.api.nulls import SELECTOR

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def definition(admin):
    admin.define(crd.crd())


def apply(admin, obj, **query):
    """Applies an object server-side, as Argo CD and `kubectl apply --server-side` do."""
    return admin.apply(obj, manager="gitops", fieldValidation="Strict", **query)


def create(admin, obj, **query):
    return admin.create(obj, fieldValidation="Strict", **query)


def attempt(write, admin, obj):
    try:
        return write(admin, obj, dryRun="All")
    except ApiError as error:
        return error


@pytest.mark.parametrize("write", [create, apply])
def test_a_null_is_accepted_where_a_field_may_be_absent_and_rejected_elsewhere(admin, definition, namespace, write):
    wrong = []
    for case in null_cases():
        if write is create and case.path.endswith(f".{SELECTOR}.entry"):
            continue  # the API server drops such a null before it compares the object with the schema
        obj = {**demo(namespace), "spec": case.spec}
        answer = attempt(write, admin, obj)
        if isinstance(answer, ApiError):
            if case.optional or answer.status not in (422, 500):
                wrong.append(f"{case.path}: {answer}")
        elif not case.optional or parse(answer).spec != parse({**obj, "spec": case.without}).spec:
            wrong.append(f"{case.path}: {answer['spec']}")
    assert wrong == []


def test_an_applied_null_removes_a_value_and_a_second_apply_changes_nothing(admin, definition, namespace):
    obj = demo(namespace, engine={"samplingMode": "Edit", "maxNumReqs": 4}, resources={"limits": {"cpu": "2"}})
    apply(admin, obj)
    obj["spec"] |= {"engine": {"samplingMode": None, "maxNumReqs": 4}, "resources": None, "replicas": None}
    applied = apply(admin, obj)
    spec = parse(applied).spec
    assert (spec.engine.sampling_mode, spec.engine.max_num_reqs, spec.resources.limits) == (None, 4, {})
    assert applied["spec"]["replicas"] == 1
    assert apply(admin, obj)["metadata"]["resourceVersion"] == applied["metadata"]["resourceVersion"]


def test_a_service_that_is_applied_with_nulls_runs_and_scales(admin, namespace, operator):
    nulls = {case.path: None for case in null_cases() if case.optional and "." not in case.path}
    resource = apply(admin, demo(namespace, **nulls))
    wait_condition(admin, resource, "Accepted", "True", says="the spec is valid and applied")
    admin.patch(resource, {"spec": {"replicas": 3}}, subresource="scale")
    admin.wait(
        "three replicas",
        lambda: admin.get("apps/v1", "Deployment", "demo", namespace)["spec"]["replicas"] == 3,
    )
    before = read(admin, resource)["metadata"]["generation"]
    apply(
        admin, {**demo(namespace, **nulls), "spec": {**demo(namespace, **nulls)["spec"], "replicas": 3}}, force="true"
    )
    assert read(admin, resource)["metadata"]["generation"] == before

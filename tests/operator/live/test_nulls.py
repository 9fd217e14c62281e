"""Tests that a real API server accepts a null wherever a field may be absent, as the operator does."""

import pytest

from e2e.cluster import ApiError
from tests.operator.live.objects import demo, read, wait_condition
from tests.operator.null_cases import null_cases
from tools import crd
from unmask_operator.api import parse

pytestmark = pytest.mark.cluster


def apply(admin, obj, **query):
    """Applies an object server-side, as Argo CD and `kubectl apply --server-side` do."""
    return admin.apply(obj, manager="gitops", fieldValidation="Strict", **query)


def test_a_null_is_accepted_where_a_field_may_be_absent_and_rejected_elsewhere(admin, namespace):
    admin.define(crd.crd())
    wrong = []
    for case in null_cases():
        obj = {**demo(namespace), "spec": case.spec}
        try:
            stored = apply(admin, obj, dryRun="All")
        except ApiError as error:
            if case.optional or error.status not in (422, 500):
                wrong.append(f"{case.path}: {error}")
            continue
        if not case.optional or parse(stored).spec != parse({**obj, "spec": case.without}).spec:
            wrong.append(f"{case.path}: {stored['spec']}")
    assert wrong == []


def test_a_service_that_is_applied_with_nulls_runs_and_scales(admin, namespace, operator):
    obj = demo(namespace, engine={"samplingMode": "Edit", "maxNumReqs": 4}, resources={"limits": {"cpu": "2"}})
    apply(admin, obj)
    obj["spec"] |= {case.path: None for case in null_cases() if case.optional and "." not in case.path}
    obj["spec"] |= {"engine": {"samplingMode": None, "maxNumReqs": 4}}
    resource = apply(admin, obj)
    engine = parse(resource).spec.engine
    assert (engine.sampling_mode, engine.max_num_reqs, parse(resource).spec.resources.limits) == (None, 4, {})
    assert resource["spec"]["replicas"] == 1
    wait_condition(admin, resource, "Accepted", "True")
    admin.patch(resource, {"spec": {"replicas": 3}}, subresource="scale")
    admin.wait("three", lambda: admin.get("apps/v1", "Deployment", "demo", namespace)["spec"]["replicas"] == 3)
    before = read(admin, resource)["metadata"]["generation"]
    apply(admin, {**obj, "spec": {**obj["spec"], "replicas": 3}}, force="true")
    assert read(admin, resource)["metadata"]["generation"] == before

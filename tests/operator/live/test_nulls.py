"""Tests that a real API server accepts a null wherever a field may be absent, as the operator does."""

import pytest

from e2e.cluster import ApiError
from tests.operator.live.objects import demo
from tests.operator.null_cases import null_cases
from tools import crd
from unmask_operator.api import parse

pytestmark = pytest.mark.cluster


def test_a_null_is_accepted_where_a_field_may_be_absent_and_rejected_elsewhere(admin, namespace):
    admin.define(crd.crd())
    wrong = []
    for case in null_cases():
        obj = {**demo(namespace), "spec": case.spec}
        try:
            stored = admin.apply(obj, manager="gitops", fieldValidation="Strict", dryRun="All")
        except ApiError as error:
            if case.optional or error.status not in (422, 500):
                wrong.append(f"{case.path}: {error}")
            continue
        if not case.optional or parse(stored).spec != parse({**obj, "spec": case.without}).spec:
            wrong.append(f"{case.path}: {stored['spec']}")
    assert wrong == []

"""Tests that an explicit null in a spec means that the field is not set, wherever the operator reads it."""

import pytest

from tests.operator.null_cases import null_cases
from tests.operator.samples import make, observe, resource, running, settled
from unmask_operator.api import SpecError, parse
from unmask_operator.autoscaler.rules import Rules
from unmask_operator.kinds import DLMS
from unmask_operator.kube.cache import slim
from unmask_operator.status import status

CASES = list(null_cases())


def with_spec(spec):
    return {**resource(), "spec": spec}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.path)
def test_a_null_is_a_field_that_is_not_set_or_refused_where_one_is_required(case):
    if not case.optional:
        with pytest.raises(SpecError):
            parse(with_spec(case.spec))
        return
    assert parse(with_spec(case.spec)).spec == parse(with_spec(case.without)).spec
    observed, unset = observe(with_spec(case.spec)), observe(with_spec(case.without))
    assert make(observed).children == make(unset).children
    assert status(observed, make(observed)) == status(unset, make(unset))


def test_a_null_that_is_added_to_a_running_service_is_no_edit():
    observed = running(replicas=2)
    members = {case.path for case in CASES if case.optional and "." not in case.path} - {"replicas"}
    observed.resource["spec"] |= dict.fromkeys(members)
    assert settled(make(observed), observed)


def test_the_cache_holds_no_nulls_and_the_autoscaler_reads_defaults():
    scaling = {"maxReplicas": 4, "minReplicas": None, "provider": None, "targets": None, "behavior": None}
    template = {"spec": {"tolerations": None}}
    obj = resource(autoscaling=scaling, gpu=None, podTemplate=template, resources={"limits": {"cpu": None}})
    spec = slim(DLMS, obj)["spec"]
    kept = {"autoscaling": {"maxReplicas": 4}, "podTemplate": template, "resources": {"limits": {}}}
    assert spec == {"model": {"uri": "demo://"}, **kept}
    assert Rules.read(spec) == Rules.read({"autoscaling": {"maxReplicas": 4}})

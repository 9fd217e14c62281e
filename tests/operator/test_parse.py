"""Tests of parsing a resource: its defaults, and for each error a sentence that names the field."""

import contextlib
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unmask_operator.api import SpecError, parse
from unmask_operator.objects import API_VERSION, KIND
from unmask_operator.render.children import networkpolicy
from unmask_operator.settings import Settings

PODS = {"podSelector": {}}


def resource(name="demo", **spec):
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": name, "namespace": "team", "uid": "u-1", "generation": 3},
        "spec": {"model": {"uri": "demo://"}, **spec},
    }


def refusal(obj):
    with pytest.raises(SpecError) as caught:
        parse(obj)
    assert caught.value.message
    assert str(caught.value).endswith(caught.value.message)
    return caught.value


def test_the_minimal_resource_gets_its_defaults():
    service = parse(resource())
    assert (service.name, service.namespace, service.uid) == ("demo", "team", "u-1")
    assert service.model_name == "demo"
    spec = service.spec
    assert (spec.replicas, spec.suspend, spec.gpus_per_pod, spec.drain_timeout_seconds) == (1, False, 0, 60)
    assert (spec.rollout_strategy.max_surge, spec.rollout_strategy.max_unavailable) == (1, 0)
    assert spec.service.port == 80
    assert spec.autoscaling is spec.network_policy is spec.auth is spec.monitoring.pod_monitor is None


def test_names_are_snake_case_in_python_and_camel_case_outside():
    spec = parse(
        resource(
            gpu={},
            parallelism={"data": 2},
            engine={"maxNumReqs": 8, "thresholds": {"semiComplete": 1}},
            networkPolicy={"from": [{"podSelector": {}}], "metricsFrom": []},
        )
    ).spec
    assert spec.gpus_per_pod == 2
    assert spec.engine.max_num_reqs == 8
    assert spec.engine.thresholds.semi_complete == 1.0
    assert len(spec.network_policy.from_) == 1
    assert parse(resource(engine={"max_num_reqs": 8})).ignored == ("spec.engine.max_num_reqs",)


def test_unknown_fields_are_left_out_and_named():
    manifest = resource(
        replica=2, engine={"warp": {"a": 1}, "maxNumReqs": 8}, networkPolicy={"from": [{"x": 1, **PODS}]}
    )
    assert parse(manifest).spec == parse(resource(engine={"maxNumReqs": 8}, networkPolicy={"from": [PODS]})).spec
    assert set(parse(manifest).ignored) == {"spec.replica", "spec.engine.warp", "spec.networkPolicy.from[0].x"}
    assert manifest["spec"]["replica"] == 2
    assert parse(resource()).ignored == ()
    policy = networkpolicy(parse(resource(networkPolicy={"from": [{"x": 1}]})), Settings())
    assert policy["spec"]["ingress"][0]["from"][0] == {}, (
        "the peer must be empty, which the API server rejects, and must not match all peers"
    )


def test_with_a_pinned_pod_template_only_other_sections_are_parsed():
    manifest = resource(model=3, engine={"pageSize": "x"}, service={"port": 81})
    assert parse(manifest, pods_are_pinned=True).spec.service.port == 81
    assert refusal(manifest).field == "spec.model"
    strange = resource(engine={"pageSize": "x", "warp": 1}, service={"port": 81, "speed": 1})
    assert set(parse(strange, pods_are_pinned=True).ignored) == {"spec.engine.warp", "spec.service.speed"}
    with pytest.raises(SpecError, match=r"spec\.replicas"):
        parse(resource(replicas=-1), pods_are_pinned=True)


def test_a_running_service_may_have_unknown_values_outside_the_pod_template():
    manifest = resource(service={"type": "OfTomorrow", "port": 0}, networkPolicy={"from": 1}, engine={"maxNumReqs": 8})
    service = parse(manifest, runs=True)
    assert service.spec == parse(resource(engine={"maxNumReqs": 8})).spec
    assert {section: error.field for section, error in service.unread.items()} == {
        "service": "spec.service.type",
        "networkPolicy": "spec.networkPolicy.from",
    }
    assert parse(manifest, pods_are_pinned=True).unread.keys() == service.unread.keys()
    assert refusal(manifest).field == "spec.service.type", (
        "a resource that does not run was accepted with unknown values"
    )
    with pytest.raises(SpecError, match=r"spec\.engine"):
        parse({**manifest, "spec": {**manifest["spec"], "engine": 1}}, runs=True)


@pytest.mark.parametrize(
    ("change", "field", "message"),
    [
        ({"replicas": "2"}, "spec.replicas", "valid integer, and not '2'"),
        ({"suspend": "yes"}, "spec.suspend", "valid boolean, and not 'yes'"),
        ({"engine": []}, "spec.engine", "dictionary"),
        ({"model": {}}, "spec.model.uri", "required"),
        ({"engine": {"thresholds": {"accept": 1.5}}}, "spec.engine.thresholds.accept", "less than or equal to 1"),
        ({"engine": {"gpuMemoryUtilization": 0}}, "spec.engine.gpuMemoryUtilization", "greater than 0"),
        ({"engine": {"samplingMode": "edit"}}, "spec.engine.samplingMode", "'Naive' or 'Edit'"),
        ({"engine": {"extraArgs": "--x"}}, "spec.engine.extraArgs", "valid list"),
        ({"resources": {"limits": {"cpu": 1.5}}}, "spec.resources.limits.cpu", "not a quantity"),
        ({"rolloutStrategy": {"maxSurge": "101%"}}, "spec.rolloutStrategy.maxSurge", "percentage"),
        ({"imagePullSecrets": [{"name": "A"}]}, "spec.imagePullSecrets[0].name", "match pattern"),
        ({"drainTimeoutSeconds": float("nan")}, "spec.drainTimeoutSeconds", "valid integer"),
    ],
)
def test_a_wrong_value_is_named(change, field, message):
    error = refusal(resource(**change))
    assert error.field == field
    assert message in error.message


@pytest.mark.parametrize("spec", [None, [], "x", 3])
def test_a_spec_that_is_no_map_is_refused(spec):
    assert refusal({**resource(), "spec": spec}).field == "spec"


json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
FIELDS = sorted(parse(resource()).spec.model_dump(by_alias=True))


@given(st.dictionaries(st.sampled_from(FIELDS), json, max_size=4))
def test_parsing_never_crashes(change):
    with contextlib.suppress(SpecError):
        parse(resource(**change))


def test_importing_the_api_loads_neither_torch_nor_aiohttp():
    code = "import sys, unmask_operator.api; sys.exit('torch' in sys.modules or 'aiohttp' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0

"""Tests of parsing a resource: its defaults, and for each error the field."""

import contextlib
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.operator.samples import resource
from unmask_operator.api import SpecError, parse
from unmask_operator.render.children import networkpolicy
from unmask_operator.settings import Settings


def refusal(obj, **options):
    with pytest.raises(SpecError) as caught:
        parse(obj, **options)
    assert caught.value.message
    assert str(caught.value).endswith(caught.value.message)
    return caught.value


def test_the_minimal_resource_gets_its_defaults():
    service = parse(resource())
    assert (service.name, service.namespace, service.uid, service.model_name) == ("demo", "default", "uid-1", "demo")
    assert service.ignored == ()
    spec = service.spec
    assert (spec.replicas, spec.suspend, spec.gpus_per_pod, spec.drain_timeout_seconds) == (1, False, 0, 60)
    assert spec.autoscaling is spec.network_policy is spec.auth is spec.monitoring.pod_monitor is None
    assert parse(resource(gpu={}, parallelism={"data": 2})).spec.gpus_per_pod == 2


def test_unknown_fields_are_left_out_and_named():
    peer = {"x": 1, "podSelector": {}}
    manifest = resource(
        replica=2, engine={"warp": {"a": 1}, "maxNumReqs": 8, "max_num_reqs": 9}, networkPolicy={"from": [peer]}
    )
    known = resource(engine={"maxNumReqs": 8}, networkPolicy={"from": [{"podSelector": {}}]})
    assert parse(manifest).spec == parse(known).spec
    fields = {"replica", "engine.warp", "engine.max_num_reqs", "networkPolicy.from[0].x"}
    assert set(parse(manifest).ignored) == {f"spec.{field}" for field in fields}
    assert manifest["spec"]["replica"] == 2
    policy = networkpolicy(parse(resource(networkPolicy={"from": [{"x": 1}]})), Settings())
    assert policy["spec"]["ingress"][0]["from"][0] == {}, "the API server must reject the peer; it may not match all"


def test_with_a_pinned_pod_template_only_other_sections_are_parsed():
    manifest = resource(model=3, engine={"pageSize": "x"}, service={"port": 81})
    assert parse(manifest, pods_are_pinned=True).spec.service.port == 81
    assert refusal(manifest).field == "spec.model"
    strange = resource(engine={"pageSize": "x", "warp": 1}, service={"port": 81, "speed": 1})
    assert set(parse(strange, pods_are_pinned=True).ignored) == {"spec.engine.warp", "spec.service.speed"}
    assert refusal(resource(replicas=-1), pods_are_pinned=True).field == "spec.replicas"


def test_a_running_service_may_have_unknown_values_outside_the_pod_template():
    manifest = resource(service={"type": "OfTomorrow", "port": 0}, networkPolicy={"from": 1}, engine={"maxNumReqs": 8})
    service = parse(manifest, runs=True)
    assert service.spec == parse(resource(engine={"maxNumReqs": 8})).spec
    unread = {"service": "spec.service.type", "networkPolicy": "spec.networkPolicy.from"}
    assert {section: error.field for section, error in service.unread.items()} == unread
    assert parse(manifest, pods_are_pinned=True).unread.keys() == unread.keys()
    assert refusal(manifest).field == "spec.service.type"
    assert refusal({**manifest, "spec": {**manifest["spec"], "engine": 1}}, runs=True).field == "spec.engine"


@pytest.mark.parametrize(
    ("change", "field", "part"),
    [
        ({"replicas": "2"}, "spec.replicas", "valid integer, and not '2'"),
        ({"model": {}}, "spec.model.uri", "required"),
        ({"engine": {"samplingMode": "edit"}}, "spec.engine.samplingMode", "'Naive' or 'Edit'"),
        ({"resources": {"limits": {"cpu": 1.5}}}, "spec.resources.limits.cpu", "not a quantity"),
        ({"rolloutStrategy": {"maxSurge": "101%"}}, "spec.rolloutStrategy.maxSurge", "percentage"),
        ({"rolloutStrategy": {"maxSurge": True}}, "spec.rolloutStrategy.maxSurge", "percentage"),
        ({"imagePullSecrets": [{"name": "A"}]}, "spec.imagePullSecrets[0].name", "match pattern"),
        ({"model": {"uri": "x" * 600}}, "spec.model.uri", "xxx..."),
    ],
)
def test_a_wrong_value_is_named(change, field, part):
    error = refusal(resource(**change))
    assert error.field == field
    assert part in error.message


@pytest.mark.parametrize("spec", [None, [], "x"])
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


@pytest.mark.parametrize(
    ("module", "heavy"), [("api", {"torch", "aiohttp"}), ("render.arguments", {"torch"})], ids=["api", "render"]
)
def test_the_core_imports_no_heavy_library(module, heavy):
    code = f"import sys, unmask_operator.{module}; sys.exit(bool({heavy!r} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0

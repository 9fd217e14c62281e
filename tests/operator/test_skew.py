"""An operator that is older than the spec: what it does not know it ignores and names, and no pod moves."""

from __future__ import annotations

from tests.operator.samples import container, edit, make, observe, resource, template
from tests.operator.test_pins import condition, pinned_by_another


def test_fields_that_this_operator_does_not_know_are_ignored_and_named() -> None:
    observed = observe(resource(ofTomorrow={"a": 1}, engine={"maxNumReqs": 7, "warp": True}))
    made = make(observed)
    assert made.problems == ()
    assert "--max-num-reqs=7" in container(made)["args"]
    told = condition(observed, made, "Accepted")
    assert told["status"] == "True"
    assert "spec.engine.warp" in told["message"]
    assert "spec.ofTomorrow" in told["message"]


def test_an_older_operator_over_a_newer_spec_moves_no_pod() -> None:
    """`helm rollback` of the operator: the pin says what the newer one made of a field that this one does not know."""
    observed = pinned_by_another({"ofTomorrow": 1})
    pods = template(make(observed))
    for change in ({}, {"ofTomorrow": 2}, {"service": {"port": 81}}, {"ofTomorrow": None}):
        made = make(edit(observed, **change))
        assert made.problems == ()
        assert template(made) == pods

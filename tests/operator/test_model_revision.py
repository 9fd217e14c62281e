"""Tests of hub models without a revision: all pods of a revision use one commit, and the template does not change."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest

from tests.operator.samples import apply, child, container, edit, kinds, make, observe, resource, settled, template
from tests.operator.test_revisions import NEW, restarted
from unmask_operator.objects import Obj, Ref
from unmask_operator.plan.observed import Observed
from unmask_operator.render.model_revision import key_of
from unmask_operator.status import status

A, B = "a" * 40, "b" * 40
HUB = {"uri": "hf://org/name"}


def pod(observed: Observed, name: str, created: str) -> Obj:
    """Returns a pod of the Deployment's current template."""
    made = copy.deepcopy(template(make(observed)))
    meta = {**made["metadata"], "name": name, "uid": name, "creationTimestamp": f"2026-01-01T00:00:0{created}Z"}
    return {**made, "metadata": meta, "status": {"phase": "Running"}}


def hub(**spec: Any) -> Observed:
    observed = observe(resource(model=HUB, **spec))
    return apply(observed, make(observed))


def say(observed: Observed, **commits: str) -> Observed:
    """Returns the state after new pods have reported commits and a reconcile. Later arguments are younger pods."""
    made = [pod(observed, name, str(i)) for i, name in enumerate(commits)]
    observed = replace(observed, pods=[*reversed(made), *observed.pods], revisions={**observed.revisions, **commits})
    return apply(observed, make(observed))


def commit(observed: Observed) -> str:
    """Returns the suffix that new pods append to the model's name: `@` and the commit, or the empty string."""
    made = make(observed)
    key = key_of(template(made))
    data: dict[str, str] = child(made, "ConfigMap")["data"]
    assert key is not None
    return data[key]


def test_the_first_pods_commit_is_recorded_for_all_pods_without_a_new_template() -> None:
    observed = hub()
    assert "--model=hf://org/name$(MODEL_REVISION)" in container(make(observed))["args"]
    variable = next(v for v in container(make(observed))["env"] if v["name"] == "MODEL_REVISION")
    assert variable["valueFrom"]["configMapKeyRef"]["name"] == "demo-model"
    assert kinds(make(observed)).index("ConfigMap") < kinds(make(observed)).index("Deployment")
    assert commit(observed) == ""
    assert "model" not in status(observed, make(observed))

    pods = template(make(observed))
    after = say(observed, first=A, second=B)
    assert commit(after) == f"@{A}"
    assert template(make(after)) == pods
    assert settled(make(after), after)
    assert status(after, make(after))["model"] == {"revision": A}
    assert commit(replace(after, pods=(), revisions={})) == f"@{A}", "the commit was lost together with the pods"
    assert commit(say(after, third=B)) == f"@{A}"


def test_a_pod_that_reports_no_commit_records_nothing() -> None:
    assert commit(say(hub(), old="")) == ""


def test_an_edit_keeps_the_commit_and_a_restart_resolves_it_anew() -> None:
    observed = say(hub(), first=A)
    for change in ({"engine": {"maxNumReqs": 7}}, {"service": {"port": 81}}, {"suspend": True}):
        observed = edit(observed, **change)
        observed = apply(observed, make(observed, NEW))
        assert commit(observed) == f"@{A}"
    observed = restarted(replace(observed, pods=(), revisions={}), "today")
    observed = apply(observed, make(observed))
    assert commit(observed) == ""
    observed = say(observed, newer=B)
    assert commit(observed) == f"@{B}"


def test_going_back_restores_the_commit() -> None:
    observed = say(hub(), first=A)
    observed = replace(edit(observed, model={"uri": "hf://org/other"}), pods=(), revisions={})
    observed = say(apply(observed, make(observed)), other=B)
    assert commit(observed) == f"@{B}"
    back = replace(edit(observed, model=HUB), pods=(), revisions={})
    assert commit(back) == f"@{A}"


def test_an_invalid_commit_in_the_config_map_is_replaced() -> None:
    observed = say(hub(), first=A)
    ref = Ref("v1", "ConfigMap", "demo-model")
    spoilt = copy.deepcopy(observed.children[ref])
    spoilt["data"] = dict.fromkeys(spoilt["data"], "/../../else")
    observed = replace(observed, children={**observed.children, ref: spoilt})
    assert not settled(make(observed), observed)
    assert commit(observed) == f"@{A}", "the commit that a running pod reported was not restored"


@pytest.mark.parametrize("source", ["x", 1, ["x"], {"configMapKeyRef": "x"}, {"configMapKeyRef": {"key": 1}}])
def test_a_variable_of_a_wrong_type_in_the_pod_template_is_left_to_the_api_server(source: object) -> None:
    main = {"name": "main", "env": [{"name": "MODEL_REVISION", "valueFrom": source}]}
    made = make(observe(resource(model=HUB, podTemplate={"spec": {"containers": [main]}})))
    assert {"name": "MODEL_REVISION", "valueFrom": source} in container(made)["env"]


def test_a_model_that_needs_no_recorded_commit_has_no_config_map() -> None:
    for model in ({"uri": "demo://"}, {"uri": "pvc://claim/path"}, {**HUB, "revision": "v1"}):
        made = make(observe(resource(model=model)))
        assert "ConfigMap" not in kinds(made)
        assert "$(" not in str(container(made)["args"])

"""Tests of hub models without a revision: all pods of a revision use one commit, and the template does not change."""

import copy
from dataclasses import replace

import pytest

from tests.operator import samples
from tests.operator.samples import apply, child, container, edit, kinds, make, observe, resource, settled, template
from unmask_operator.objects import Ref
from unmask_operator.plan.observed import Observed
from unmask_operator.render.model import key_of
from unmask_operator.status import status

A, B = "a" * 40, "b" * 40
HUB = {"uri": "hf://org/name"}


def hub(**commits: str) -> Observed:
    """Returns the state of a service whose first pods have reported these commits."""
    observed = observe(resource(model=HUB))
    return report(apply(observed, make(observed)), **commits)


def report(observed: Observed, **commits: str) -> Observed:
    """Returns the state after new pods have reported commits and a reconcile. Later arguments are younger pods."""
    pods = list(observed.pods)
    for second, name in enumerate(commits):
        pod = copy.deepcopy(template(make(observed)))
        pod["metadata"] |= {"name": name, "uid": name, "creationTimestamp": f"2026-01-01T00:00:0{second}Z"}
        pods.insert(0, {**pod, "status": {"phase": "Running"}})
    observed = replace(observed, pods=pods, revisions={**observed.revisions, **commits})
    return apply(observed, make(observed))


def without_pods(observed: Observed) -> Observed:
    return replace(observed, pods=(), revisions={})


def commit(observed: Observed) -> str:
    """Returns the suffix that new pods append to the model's name: `@` and the commit, or the empty string."""
    made = make(observed)
    key = key_of(template(made))
    data: dict[str, str] = child(made, "ConfigMap")["data"]
    assert key is not None
    return data[key]


def test_the_first_pods_commit_is_recorded_for_all_pods_without_a_new_template() -> None:
    observed = hub()
    made = make(observed)
    assert "--model=hf://org/name$(MODEL_REVISION)" in container(made)["args"]
    variable = next(v for v in container(made)["env"] if v["name"] == "MODEL_REVISION")
    assert variable["valueFrom"]["configMapKeyRef"]["name"] == "demo-model"
    assert kinds(made).index("ConfigMap") < kinds(made).index("Deployment")
    assert commit(observed) == commit(report(observed, old="")) == ""
    assert "model" not in status(observed, made)

    after = report(observed, first=A, second=B)
    assert commit(after) == f"@{A}"
    assert template(make(after)) == template(made)
    assert settled(make(after), after)
    assert status(after, make(after))["model"] == {"revision": A}
    assert commit(without_pods(after)) == f"@{A}", "the commit was lost together with the pods"
    assert commit(report(after, third=B)) == f"@{A}"


def test_an_edit_keeps_the_commit_and_a_restart_or_another_model_resolves_it_anew() -> None:
    observed = hub(first=A)
    for change in ({"engine": {"maxNumReqs": 7}}, {"service": {"port": 81}}, {"suspend": True}):
        observed = edit(observed, **change)
        observed = apply(observed, make(observed, samples.NEW))
        assert commit(observed) == f"@{A}"
    for changed in (samples.restarted(observed, "today"), edit(observed, model={"uri": "hf://org/other"})):
        changed = without_pods(changed)
        assert commit(changed) == ""
        other = report(apply(changed, make(changed)), newer=B)
        assert commit(other) == f"@{B}"
    assert commit(without_pods(edit(other, model=HUB))) == f"@{A}", "going back must restore the commit"


def test_an_invalid_commit_in_the_config_map_is_replaced() -> None:
    observed = hub(first=A)
    ref = Ref("v1", "ConfigMap", "demo-model")
    spoilt = copy.deepcopy(observed.children[ref])
    spoilt["data"] = dict.fromkeys(spoilt["data"], "/../../else")
    observed = replace(observed, children={**observed.children, ref: spoilt})
    assert not settled(make(observed), observed)
    assert commit(observed) == f"@{A}", "the commit that a running pod reported was not restored"


@pytest.mark.parametrize("source", ["x", 1, {"configMapKeyRef": "x"}, {"configMapKeyRef": {"key": 1}}])
def test_a_variable_of_a_wrong_type_in_the_pod_template_is_left_to_the_api_server(source: object) -> None:
    main = {"name": "main", "env": [{"name": "MODEL_REVISION", "valueFrom": source}]}
    made = make(observe(resource(model=HUB, podTemplate={"spec": {"containers": [main]}})))
    assert {"name": "MODEL_REVISION", "valueFrom": source} in container(made)["env"]


@pytest.mark.parametrize("model", [{"uri": "demo://"}, {"uri": "pvc://claim/path"}, {**HUB, "revision": "v1"}])
def test_a_model_that_needs_no_recorded_commit_has_no_config_map(model: dict[str, str]) -> None:
    made = make(observe(resource(model=model)))
    assert "ConfigMap" not in kinds(made)
    assert "$(" not in str(container(made)["args"])

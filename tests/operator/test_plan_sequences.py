"""Property-based tests of sequences of edits, scalings, restarts, operator upgrades, and crashes between two writes."""

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.operator.samples import apply, child, edit, make, observe, resource, restarted, settled, template
from unmask_operator.objects import RESTARTED_AT, Obj, Ref, controller_uid
from unmask_operator.plan.drift import differs
from unmask_operator.plan.observed import Observed
from unmask_operator.plan.plan import Plan
from unmask_operator.render.revision import REVISION_HISTORY_LIMIT
from unmask_operator.settings import Settings

OPERATORS = [Settings(version=v, runtime_image=f"unmask-runtime:{v}") for v in ("0.1.0", "0.2.0", "0.3.0")]
FOREIGN: Obj = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"name": "another", "namespace": "default", "labels": {"serving.unmask.dev/service": "demo"}},
}
BAD = {"spec": {"containers": [{"name": "main", "command": ["sh"]}]}}

edits = st.fixed_dictionaries(
    {},
    optional={
        "engine": st.none() | st.fixed_dictionaries({"maxNumReqs": st.integers(1, 3)}),
        "networkPolicy": st.none() | st.just({}),
        "service": st.none() | st.fixed_dictionaries({"port": st.integers(80, 82)}),
        "suspend": st.none() | st.booleans(),
        "podTemplate": st.none() | st.just(BAD) | st.just({"spec": {"priority": 1}}),
    },
)
steps = st.one_of(
    st.tuples(st.just("edit"), edits),
    st.tuples(st.just("scale"), st.integers(0, 4)),
    st.tuples(st.just("restart"), st.sampled_from([None, "a", "b"])),
    st.tuples(st.just("upgrade"), st.integers(0, 2)),
)
deaths = st.lists(st.integers(0, 6), max_size=2)  # number of writes before each crash


def of_pods(observed: Observed) -> Any:
    """Returns what pods depend on: some sections of the spec, and the restart annotation."""
    service = observed.resource
    spec = {member: value for member, value in service["spec"].items() if member in ("model", "engine", "podTemplate")}
    return spec, service["metadata"].get("annotations", {}).get(RESTARTED_AT)


def some_writes(observed: Observed, plan: Plan, count: int) -> Observed:
    """Applies the first `count` writes of a plan."""
    changed = [
        c for c in plan.children if Ref.of(c) not in observed.children or differs(c, observed.children[Ref.of(c)])
    ]
    deleted = plan.delete[: max(0, count - len(changed))]
    return apply(observed, replace(plan, children=tuple(changed[:count]), delete=deleted))


def live_template(observed: Observed) -> Any:
    deployment = observed.children.get(Ref("apps/v1", "Deployment", "demo"))
    return deployment["spec"]["template"] if deployment else None


@given(st.lists(st.tuples(steps, deaths), max_size=8))
def test_invariants_hold_for_any_history(history: list[tuple[tuple[str, Any], list[int]]]) -> None:
    observed, settings = observe(resource(), FOREIGN), OPERATORS[0]
    observed = apply(observed, make(observed, settings))
    good = of_pods(observed)
    for (step, value), killed in history:
        before = live_template(observed)
        if step == "edit":
            observed = edit(observed, **value)
        elif step == "scale":
            observed = edit(observed, replicas=value)
        elif step == "restart":
            observed = restarted(observed, value)
        elif step == "upgrade":
            settings = OPERATORS[value]
        plan = make(observed, settings)
        for writes in killed:
            observed = some_writes(observed, plan, writes)
            assert make(observed, settings).children == plan.children, "the plan after a crash has other children"
        observed = apply(observed, make(observed, settings))

        accepted = not plan.problems
        assert accepted == (observed.resource["spec"].get("podTemplate") != BAD)
        if step in ("scale", "upgrade") or not accepted or of_pods(observed) == good:
            assert live_template(observed) == before, "the pod template changed without an accepted edit or restart"
        if accepted and (restart := of_pods(observed)[1]) is not None:
            assert template(plan)["metadata"]["annotations"].get(RESTARTED_AT) == restart
        good = of_pods(observed) if accepted else good

        again = make(observed, settings)
        assert settled(again, observed), "children differ from the plan after all writes"
        assert observed.children[Ref.of(FOREIGN)] == FOREIGN
        pins = [ref for ref in observed.children if ref.kind == "ControllerRevision"]
        assert 1 <= len(pins) <= REVISION_HISTORY_LIMIT
        replicas = 0 if observed.resource["spec"].get("suspend") else observed.resource["spec"].get("replicas", 1)
        assert child(plan, "Deployment")["spec"]["replicas"] == replicas
        assert all(controller_uid(c) == "uid-1" for ref, c in observed.children.items() if ref != Ref.of(FOREIGN))

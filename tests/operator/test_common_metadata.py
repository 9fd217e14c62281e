"""Tests that common labels and annotations reach every object of a resource and override none of the operator's."""

from __future__ import annotations

import pytest

from tests.operator.samples import apply, child, edit, make, observe, resource, running, settled, template
from unmask_operator.api import SpecError, parse
from unmask_operator.api.base import RESERVED_ANNOTATIONS, RESERVED_LABELS
from unmask_operator.objects import SERVICE_LABEL, TEMPLATE_LABEL
from unmask_operator.render.labels import labels

LABELS = {"team": "search", "example.com/cost-center": "", "app.kubernetes.io/part-of": "shop"}
ANNOTATIONS = {"example.com/owner": "Search, and Ads", "argocd.argoproj.io/compare-options": "IgnoreExtraneous"}
# Renders every kind of child.
EVERYTHING = {
    "commonLabels": LABELS,
    "commonAnnotations": ANNOTATIONS,
    "model": {"uri": "hf://org/name"},
    "lora": {"adapters": [{"name": "a", "uri": "demo://roman"}]},
    "autoscaling": {"provider": "HPA", "maxReplicas": 3},
    "networkPolicy": {},
    "monitoring": {"podMonitor": {}},
}


def test_every_child_and_the_pods_have_the_common_metadata():
    made = make(observe(resource(**EVERYTHING)))
    assert len(made.children) == 10
    for obj in (*made.children, template(made)):
        metadata = obj["metadata"]
        assert metadata["labels"].items() >= (LABELS | labels("demo")).items(), obj.get("kind")
        assert metadata["annotations"].items() >= ANNOTATIONS.items(), obj.get("kind")


def test_no_selector_has_the_common_labels():
    made = make(observe(resource(**EVERYTHING)))
    selector = {SERVICE_LABEL: "demo"}
    assert child(made, "Service")["spec"]["selector"] == selector
    for kind in ("Deployment", "PodDisruptionBudget", "PodMonitor"):
        assert child(made, kind)["spec"]["selector"] == {"matchLabels": selector}
    assert child(made, "NetworkPolicy")["spec"]["podSelector"] == {"matchLabels": selector}
    (spread,) = template(made)["spec"]["topologySpreadConstraints"]
    assert spread["labelSelector"] == {"matchLabels": selector}


def test_labels_and_annotations_of_a_section_override_the_common_ones():
    common = {"commonLabels": {"team": "a"}, "commonAnnotations": {"owner": "a"}}
    own = {
        "service": {"annotations": {"owner": "b", "x": "y"}},
        "serviceAccount": {"annotations": {"owner": "c"}},
        "podTemplate": {"metadata": {"labels": {"team": "d"}, "annotations": {"owner": None}}},
        "monitoring": {"podMonitor": {"labels": {"team": "e"}}},
    }
    made = make(observe(resource(**common, **own)))
    assert child(made, "Service")["metadata"]["annotations"] == {"owner": "b", "x": "y"}
    assert child(made, "ServiceAccount")["metadata"]["annotations"] == {"owner": "c"}
    assert template(made)["metadata"]["labels"]["team"] == "d"
    assert "owner" not in template(made)["metadata"]["annotations"]
    assert child(made, "PodMonitor")["metadata"]["labels"]["team"] == "e"
    assert child(made, "Deployment")["metadata"]["labels"]["team"] == "a"


def test_empty_common_metadata_does_not_change_the_children():
    empty, unset = (make(observe(resource(**common))) for common in ({"commonLabels": {}, "commonAnnotations": {}}, {}))
    assert [o for o in empty.children if o["kind"] != "ControllerRevision"] == [
        o for o in unset.children if o["kind"] != "ControllerRevision"
    ]


def test_an_edit_of_the_common_metadata_replaces_the_pods_and_reaches_the_revision():
    observed = running(commonLabels={"team": "a"})
    changed = edit(observed, commonLabels={"team": "b"})
    made = make(changed)
    assert template(made)["metadata"]["labels"]["team"] == "b"
    assert (
        template(made)["metadata"]["labels"][TEMPLATE_LABEL]
        != (template(make(observed))["metadata"]["labels"][TEMPLATE_LABEL])
    )
    assert settled(make(apply(changed, made)), apply(changed, made))


def test_children_keep_the_common_metadata_next_to_an_unknown_value_in_the_spec():
    """Checks a value that only another version of the operator supports. The pods and the labels stay unchanged."""
    observed = running(commonLabels={"team": "a"}, engine={"decodingStrategy": "MultiBd"})
    spec = {**observed.resource["spec"], "engine": {"decodingStrategy": "OfTomorrow"}}
    pin = next(obj for obj in observed.children.values() if obj["kind"] == "ControllerRevision")
    pin["data"]["spec"]["engine"] = spec["engine"]
    observed.resource["spec"] = spec
    assert child(make(observed), "Service")["metadata"]["labels"]["team"] == "a"


@pytest.mark.parametrize(
    ("field", "key"),
    [
        *(("commonLabels", key.removesuffix("/") + ("/x" if key.endswith("/") else "")) for key in RESERVED_LABELS),
        *(("commonAnnotations", key.removesuffix("/") + "/x") for key in RESERVED_ANNOTATIONS),
    ],
)
def test_keys_of_the_operator_and_of_kubernetes_are_reserved(field, key):
    with pytest.raises(SpecError, match=rf"^spec\.{field}: {key} is set by the operator or by Kubernetes; remove it$"):
        parse(resource(**{field: {"team": "a", key: "b"}}))


@pytest.mark.parametrize("field", ["commonLabels", "commonAnnotations"])
@pytest.mark.parametrize("key", ["", "a b", "-a", "a-", "a" * 64, "Example.com/a", "example.com/", "/a", "a/b/c", "é"])
def test_a_key_that_no_object_may_have_is_refused_by_name(field, key):
    with pytest.raises(SpecError, match=r"is not a valid key; use a name such as team or example\.com/team") as caught:
        parse(resource(**{field: {key: "a"}}))
    assert caught.value.field == f"spec.{field}"

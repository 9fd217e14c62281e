"""Tests of the schema that is generated from the models: structural, bounded, a case per rule, and as committed."""

from pathlib import Path

import pytest
import yaml

from tests.operator.crd_cases import BOUNDS, EDITS, RULES, changed
from tools import crd, reference
from unmask_operator.api import SpecError, parse

ROOT = Path(__file__).parents[2]
FILE = ROOT / "crds" / f"{crd.NAME}.yaml"


def nodes(node, path=""):
    yield path, node
    for name, child in node.get("properties", {}).items():
        yield from nodes(child, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if key in node:
            yield from nodes(node[key], f"{path}[]")


NODES = list(nodes(crd.schema()))
SENTENCES = {rule["message"] for _, node in NODES for rule in node.get("x-kubernetes-validations", ())}


def test_the_committed_files_are_current():
    assert FILE.read_text(encoding="utf-8") == crd.text(), "run make crds"
    assert (ROOT / "docs/reference/fields.md").read_text(encoding="utf-8") == reference.page(), "run make crds"
    assert yaml.safe_load(crd.text()) == crd.crd()


def test_every_node_is_described_and_bounded():
    """Bounds keep the API server's cost estimate of a rule low. It checks itself that the schema is structural."""
    for path, node in NODES:
        kind, own = node.get("type"), path.startswith((".spec", ".status"))
        if own and not path.endswith("[]"):
            assert node["description"].endswith((".", ")")), path
        bounds: set[str] = {"minimum", "maximum"} if path.startswith(".spec") else set()
        needed = {"string": {"maxLength"}, "array": {"maxItems"}, "integer": bounds, "number": bounds}.get(kind, set())
        if kind == "object" and "properties" not in node and not node.get("x-kubernetes-preserve-unknown-fields"):
            needed = {"additionalProperties", "maxProperties"}
        assert not own or needed <= node.keys() or "enum" in node, path


def test_only_parts_of_other_apis_preserve_unknown_fields():
    free = [path for path, node in NODES if node.get("x-kubernetes-preserve-unknown-fields")]
    template = ".spec.podTemplate"
    others = (".spec.autoscaling.keda.triggers[]", ".spec.route.filters[]")
    assert free == [f"{template}.metadata", f"{template}.spec", *others]


def test_only_replicas_has_a_default_that_the_api_server_writes():
    """Any other default would stay in stored objects, although a later version changes it."""
    assert {path: node["default"] for path, node in NODES if "default" in node} == {".spec.replicas": 1}


def test_there_is_one_case_for_each_rule():
    of_edits = {part for _, rejected, _ in EDITS for _, part in rejected}
    known = [*(case.message for case in RULES), *of_edits]
    for message in SENTENCES:
        assert len([part for part in known if part in message]) == 1, message
    assert len(known) == len(SENTENCES)


@pytest.mark.parametrize(("field", "change"), BOUNDS)
def test_the_operator_knows_every_bound_too(field, change):
    with pytest.raises(SpecError) as caught:
        parse(changed(change))
    assert caught.value.field == field

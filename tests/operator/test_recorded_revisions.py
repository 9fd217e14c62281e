"""Tests of ControllerRevisions that the operator of commit e52c7e1 wrote, as an API server returned them.

They determine the pods of running services. A later operator must render the same pods from them.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest

from tests.operator.samples import apply, child, make, observe, settled, template
from unmask_operator.kube.client import encode
from unmask_operator.objects import Obj
from unmask_operator.render.revision import Revision, controlled_revisions
from unmask_operator.settings import Settings

RECORDED: list[Obj] = json.loads((Path(__file__).parent / "recorded" / "revisions.json").read_text())
EACH = pytest.mark.parametrize("record", RECORDED, ids=lambda record: record["resource"]["metadata"]["name"])
NEWER = Settings(version="0.2.0", runtime_image="unmask-runtime:0.2.0", engine_env={"NEW": "1"})


@EACH
@pytest.mark.parametrize("settings", [Settings(), NEWER], ids=["same settings", "other settings"])
def test_a_recorded_revision_is_read_and_its_pods_stay_unchanged(record: Obj, settings: Settings) -> None:
    resource, revisions = record["resource"], record["revisions"]
    newest = max(revisions, key=lambda revision: revision["revision"])
    (pin, *_) = controlled_revisions(copy.deepcopy(revisions), resource["metadata"]["uid"])
    assert isinstance(pin, Revision)
    assert (pin.number, pin.rendered_pod.template) == (newest["revision"], newest["data"]["template"])
    observed = observe(copy.deepcopy(resource), *copy.deepcopy(revisions))
    made = make(observed, settings)
    assert made.problems == ()
    assert template(made) == newest["data"]["template"]
    assert child(made, "ControllerRevision")["metadata"]["name"] == newest["metadata"]["name"]
    assert child(made, "ControllerRevision")["data"] == newest["data"]
    after = apply(observed, made)
    assert settled(make(after, settings), after)


@EACH
def test_an_edit_that_concerns_no_pod_leaves_the_template_of_a_recorded_revision(record: Obj) -> None:
    resource, revisions = copy.deepcopy(record["resource"]), record["revisions"]
    resource["spec"]["service"] = {**resource["spec"].get("service", {}), "port": 8123}
    newest = max(revisions, key=lambda revision: revision["revision"])
    made = make(observe(resource, *copy.deepcopy(revisions)), NEWER)
    assert template(made) == newest["data"]["template"]
    assert child(made, "ControllerRevision")["revision"] == newest["revision"] + 1


@EACH
def test_a_recorded_revision_survives_encoding(record: Obj) -> None:
    for revision in record["revisions"]:
        assert json.loads(encode(revision)) == revision


def test_the_records_contain_characters_that_are_hard_to_encode() -> None:
    texts = json.dumps(RECORDED, ensure_ascii=False)
    assert {"<", ">", "&", "\u2028", "\u2029", "\U0001f600", "\ufeff", "\x7f", "\x85"} <= set(texts)

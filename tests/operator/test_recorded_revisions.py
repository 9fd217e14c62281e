"""Tests of ControllerRevisions that an earlier operator wrote: the same pods must be rendered from them."""

import copy
import json
from pathlib import Path

import pytest

from tests.operator.samples import apply, child, make, observe, settled, template
from tests.operator.test_revisions import NEW
from unmask_operator.kube.client import encode
from unmask_operator.objects import Obj
from unmask_operator.settings import Settings

RECORDED: list[Obj] = json.loads((Path(__file__).parent / "recorded" / "revisions.json").read_text())
EACH = pytest.mark.parametrize("record", RECORDED, ids=lambda record: record["resource"]["metadata"]["name"])


@EACH
@pytest.mark.parametrize("settings", [Settings(), NEW], ids=["same settings", "other settings"])
def test_the_pods_of_a_recorded_revision_stay_unchanged(record: Obj, settings: Settings) -> None:
    resource, revisions = copy.deepcopy(record["resource"]), record["revisions"]
    newest = max(revisions, key=lambda revision: revision["revision"])
    observed = observe(resource, *copy.deepcopy(revisions))
    made = make(observed, settings)
    assert made.problems == ()
    assert template(made) == newest["data"]["template"]
    assert child(made, "ControllerRevision")["metadata"]["name"] == newest["metadata"]["name"]
    assert child(made, "ControllerRevision")["data"] == newest["data"]
    after = apply(observed, made)
    assert settled(make(after, settings), after)
    resource["spec"]["service"] = {**resource["spec"].get("service", {}), "port": 8123}
    made = make(observed, settings)
    assert template(made) == newest["data"]["template"]
    assert child(made, "ControllerRevision")["revision"] == newest["revision"] + 1


def test_recorded_revisions_survive_encoding() -> None:
    revisions = [revision for record in RECORDED for revision in record["revisions"]]
    assert [json.loads(encode(revision)) for revision in revisions] == revisions
    hard = {"<", ">", "&", "\u2028", "\u2029", "\U0001f600", "\ufeff", "\x7f", "\x85"}
    assert hard <= set(json.dumps(RECORDED, ensure_ascii=False))

"""Tests of the operator's client with a real API server: the API server stores exactly what the client sends."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster import ApiError as Refused
from e2e.cluster import ApiServer, Kube
from tests.operator.clients import client_of
from tests.operator.live.objects import Obj, wait_condition, wait_settled
from tests.operator.live.process import OperatorProcess
from tests.operator.test_recorded_revisions import RECORDED
from unmask_operator.kube.client import Client
from unmask_operator.kube.errors import ApiError
from unmask_operator.kube.kinds import REVISIONS, kind_of
from unmask_operator.objects import SERVICE_LABEL
from unmask_operator.plan.drift import differs

pytestmark = pytest.mark.cluster

CONFIG_MAPS = kind_of("v1", "ConfigMap")
TEXTS = {
    "marks": "<b> & </b>",
    "separators": "a\u2028b\u2029c\u0085d",
    "controls": "".join(map(chr, (*range(1, 32), *range(127, 160)))),
    "byte order mark": "\ufeffx\ufffe\uffff",
    "beyond the BMP": "\U0001f600\U0010fffd",
    "quotes": "\" ' \\ / \\u003c",
    "YAML": "yes: no # {a: [b, *c, &d]} !!binary |\n  - ---\n...\n",
    "numbers": "0x1F 010 1e3 .5 12:30:45 2001-01-01 ~",
    "long": "ä " * 5_000,
}
DATA: Obj = {
    "texts": TEXTS,
    "z": 1,
    "a": [0, -1, 2**53 + 1, 2**63 - 1, 0.5, 1.5e-7, 1e21, True, False, None, "", [], {}],
    "\U0001f600": {"nested": [[{"x": {}}]]},
    "yes": "no",
    "1": "one",
}


def revision(namespace: str, name: str = "pinned", data: Any = None) -> Obj:
    return {
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": {"name": name, "namespace": namespace, "labels": {SERVICE_LABEL: "demo"}},
        "revision": 1,
        "data": DATA if data is None else data,
    }


def run(api: ApiServer, act: Callable[[Client], Awaitable[Any]], file: Path | None = None) -> Any:
    async def scene() -> Any:
        async with client_of(file or api.kubeconfig) as client:
            return await act(client)

    return asyncio.run(scene())


def relabelled(obj: Obj) -> Obj:
    made = copy.deepcopy(obj)
    made["metadata"]["labels"]["changed"] = "yes"
    return made


@pytest.mark.parametrize(
    "data", [DATA, *(record["revisions"][-1]["data"] for record in RECORDED)], ids=lambda data: str(len(str(data)))
)
def test_a_revision_with_any_data_can_be_patched(api_server: ApiServer, admin: Kube, namespace: str, data: Any) -> None:
    """Checks a patch of a label. It encodes the data again, and different bytes count as a change of immutable data."""
    made = revision(namespace, data=data)

    async def act(client: Client) -> None:
        await client.create(made, dry_run=True)
        created = await client.create(made)
        assert created["data"] == data
        owned = await client.upgrade_managed_fields(created)
        applied = await client.apply(relabelled(made), owned["metadata"]["uid"])
        assert applied["metadata"]["labels"]["changed"] == "yes"
        assert applied["data"] == data

    run(api_server, act)
    admin.patch(made, {"metadata": {"labels": {"changed": "again"}}})
    stored = admin.get("apps/v1", "ControllerRevision", "pinned", namespace)
    assert stored["metadata"]["labels"]["changed"] == "again"
    assert stored["data"] == data


def test_a_revision_posted_as_unsorted_json_cannot_be_patched(admin: Kube, namespace: str) -> None:
    """Shows why revisions are sent as YAML."""
    made = admin.create(revision(namespace, data={"z": "<", "a": 1}))
    with pytest.raises(Refused, match="immutable"):
        admin.patch(made, {"metadata": {"labels": {"changed": "yes"}}})


@pytest.mark.parametrize("name", TEXTS)
def test_an_applied_object_may_contain_any_text(api_server: ApiServer, admin: Kube, namespace: str, name: str) -> None:
    made: Obj = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "texts", "namespace": namespace}}

    async def act(client: Client) -> None:
        created = await client.create({**made, "data": {"text": "before"}})
        created = await client.upgrade_managed_fields(created)
        await client.apply({**made, "data": {"text": TEXTS[name], "more": "1"}}, created["metadata"]["uid"])

    run(api_server, act)
    assert admin.get("v1", "ConfigMap", "texts", namespace)["data"] == {"text": TEXTS[name], "more": "1"}


@pytest.mark.parametrize("kind", ["ConfigMap", "ControllerRevision"])
@pytest.mark.parametrize("verb", ["create", "apply"])
def test_an_unknown_field_is_refused_in_every_encoding(
    api_server: ApiServer, namespace: str, kind: str, verb: str
) -> None:
    meta = {"name": "strict", "namespace": namespace, "labels": {"a": "b"}}
    members: Obj = {"revision": 1, "data": {"a": "1"}} if kind == "ControllerRevision" else {"data": {"a": "1"}}
    made = {"apiVersion": "v1" if kind == "ConfigMap" else "apps/v1", "kind": kind, "metadata": meta, **members}

    async def act(client: Client) -> None:
        uid = (await client.create(made))["metadata"]["uid"] if verb == "apply" else ""
        wrong = {**made, "colour": "blue"}
        with pytest.raises(ApiError, match="colour") as refused:
            await (client.apply(wrong, uid, dry_run=True) if uid else client.create(wrong, dry_run=True))
        assert refused.value.refusal

    run(api_server, act)


def test_a_dry_run_writes_nothing(api_server: ApiServer, admin: Kube, namespace: str) -> None:
    run(api_server, lambda client: client.create(revision(namespace), dry_run=True))
    assert admin.find("apps/v1", "ControllerRevision", "pinned", namespace) is None


def test_a_selector_and_a_continue_token_arrive_unchanged(api_server: ApiServer, namespace: str) -> None:
    async def act(client: Client) -> None:
        for number in range(5):
            await client.create(revision(namespace, f"r{number}"))
        selector = f"{SERVICE_LABEL}=demo,!other,{SERVICE_LABEL} in (demo, x),a!=b"
        found, _ = await client.list(REVISIONS, namespace, selector, "metadata.name!=r3", page=2)
        assert [item["metadata"]["name"] for item in found] == ["r0", "r1", "r2", "r4"]
        assert (await client.list(REVISIONS, namespace, f"{SERVICE_LABEL}!=demo"))[0] == []

    run(api_server, act)


def test_a_delete_keeps_another_object_of_the_same_name(api_server: ApiServer, admin: Kube, namespace: str) -> None:
    async def act(client: Client) -> None:
        created = await client.create(revision(namespace))
        await client.delete(REVISIONS, namespace, "pinned", "another-uid")
        assert await client.get(REVISIONS, namespace, "pinned")
        await client.delete(REVISIONS, namespace, "pinned", created["metadata"]["uid"])

    run(api_server, act)
    assert admin.find("apps/v1", "ControllerRevision", "pinned", namespace) is None


@pytest.mark.parametrize(
    "record", [RECORDED[-1], RECORDED[2]], ids=lambda record: record["resource"]["metadata"]["name"]
)
def test_the_pods_of_a_recorded_revision_stay_unchanged(
    api_server: ApiServer, admin: Kube, namespace: str, operator: OperatorProcess, record: Obj
) -> None:
    """Checks the state after an upgrade: the resource and its revision exist before the operator starts."""
    newest = record["revisions"][-1]
    name = record["resource"]["metadata"]["name"]
    operator.terminate()
    resource = admin.create({**record["resource"], "metadata": {"name": name, "namespace": namespace}})
    meta = copy.deepcopy(newest["metadata"])
    owners = [{**owner, "uid": resource["metadata"]["uid"]} for owner in meta["ownerReferences"]]
    meta = {"name": meta["name"], "namespace": namespace, "labels": meta["labels"], "ownerReferences": owners}
    stored = {**newest, "metadata": meta}
    run(api_server, lambda client: client.create(stored))
    operator.start()
    wait_condition(admin, resource, "Accepted", "True")
    deployment = admin.get("apps/v1", "Deployment", name, namespace)
    desired = {**deployment, "spec": {**deployment["spec"], "template": newest["data"]["template"]}}
    assert not differs(desired, deployment)
    pinned = admin.list("apps/v1", "ControllerRevision", namespace)
    assert [(one["metadata"]["name"], one["data"]) for one in pinned] == [(newest["metadata"]["name"], newest["data"])]
    admin.patch(resource, {"metadata": {"labels": {"team": "a"}}})
    wait_settled(admin, namespace)
    assert not differs(desired, admin.get("apps/v1", "Deployment", name, namespace))
    assert "Traceback" not in operator.log()

"""Tests of the operator's client with a real API server: the API server stores exactly what the client sends."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster import ApiServer, Kube
from tests.operator.clients import client_of
from tests.operator.live.objects import Obj
from tests.operator.test_recorded_revisions import RECORDED
from unmask_operator.kube.client import Client
from unmask_operator.kube.errors import ApiError
from unmask_operator.kube.kinds import kind_of
from unmask_operator.objects import SERVICE_LABEL

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


def test_an_applied_object_may_contain_any_text(api_server: ApiServer, admin: Kube, namespace: str) -> None:
    made: Obj = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "texts", "namespace": namespace}}
    data = {name.replace(" ", "-"): text for name, text in TEXTS.items()}

    async def act(client: Client) -> None:
        created = await client.upgrade_managed_fields(await client.create({**made, "data": {"text": "before"}}))
        await client.apply({**made, "data": data}, created["metadata"]["uid"])

    run(api_server, act)
    assert admin.get("v1", "ConfigMap", "texts", namespace)["data"] == data


def test_an_unknown_field_is_refused_in_every_encoding(api_server: ApiServer, namespace: str) -> None:
    made: Obj = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "strict", "namespace": namespace}}

    async def act(client: Client) -> None:
        uid = (await client.create(made))["metadata"]["uid"]
        for send in (
            lambda: client.create({**made, "colour": "blue"}, dry_run=True),
            lambda: client.create({**revision(namespace), "colour": "blue"}, dry_run=True),
            lambda: client.apply({**made, "colour": "blue"}, uid, dry_run=True),
        ):
            with pytest.raises(ApiError, match="colour") as refused:
                await send()
            assert refused.value.refusal

    run(api_server, act)

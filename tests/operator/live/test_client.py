"""Tests of the operator's client with a real API server: the API server stores exactly what the client sends."""

import asyncio

import pytest

from e2e.cluster import ApiServer, Kube
from tests.operator.clients import client_of
from tests.operator.live.objects import Obj
from unmask_operator.objects import SERVICE_LABEL

pytestmark = pytest.mark.cluster

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
    "texts": TEXTS, "z": 1, "a": [0, -1, 2**53 + 1, 2**63 - 1, 0.5, 1.5e-7, 1e21, True, False, None, "", [], {}],
    "\U0001f600": {"nested": [[{"x": {}}]]}, "yes": "no", "1": "one",
}  # fmt: skip


def test_a_revision_with_any_data_can_be_patched(api_server: ApiServer, admin: Kube, namespace: str) -> None:
    """A patch of a label encodes the data again, and different bytes count as a change of immutable data."""
    meta = {"name": "pinned", "namespace": namespace, "labels": {SERVICE_LABEL: "demo"}}
    made: Obj = {"apiVersion": "apps/v1", "kind": "ControllerRevision", "metadata": meta, "revision": 1, "data": DATA}

    async def scene() -> None:
        async with client_of(api_server.kubeconfig) as client:
            await client.create(made, dry_run=True)
            created = await client.create(made)
            assert created["data"] == DATA
            owned = await client.upgrade_managed_fields(created)
            changed = {**made, "metadata": {**meta, "labels": {**meta["labels"], "changed": "yes"}}}
            applied = await client.apply(changed, owned["metadata"]["uid"])
            assert applied["metadata"]["labels"]["changed"] == "yes"
            assert applied["data"] == DATA

    asyncio.run(scene())
    admin.patch(made, {"metadata": {"labels": {"changed": "again"}}})
    stored = admin.get("apps/v1", "ControllerRevision", "pinned", namespace)
    assert stored["metadata"]["labels"]["changed"] == "again"
    assert stored["data"] == DATA

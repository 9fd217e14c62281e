"""Tests of paged lists with a real API server."""

from __future__ import annotations

import asyncio

import pytest

from tests.operator.clients import client_of
from tests.operator.live.objects import demo
from tests.operator.live.process import ACCOUNT, install
from unmask_operator.kube.kinds import DLMS

pytestmark = pytest.mark.cluster


def test_pages_form_the_complete_list_and_an_expired_list_starts_again(api_server, admin, namespace, fault_proxy):
    install(api_server, admin, namespace, [namespace])
    created = [admin.create(demo(namespace, f"s{number}")) for number in range(5)]
    file = api_server.service_account_kubeconfig(namespace, ACCOUNT, server=fault_proxy.url)
    fault = fault_proxy.fail(410, "continue=", after=1)

    async def scene():
        async with client_of(file) as client:
            return await client.list(DLMS, namespace, page=2)

    items, version = asyncio.run(scene())
    assert [item["metadata"]["name"] for item in items] == [f"s{number}" for number in range(5)]
    assert version >= int(created[-1]["metadata"]["resourceVersion"])
    assert fault.hits == 4  # the second page, the third page, which has expired, and both again

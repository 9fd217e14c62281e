"""Tests of an operator whose credentials the API server rejects while it runs."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes.aio.config import incluster_config

from e2e.cluster import ApiServer, Kube, kubeconfig
from tests.operator.live.objects import demo, wait_condition
from tests.operator.live.process import ACCOUNT, OperatorProcess, install
from tests.operator.proxy import FaultProxy
from tests.wait import wait_until_async
from unmask_operator.kube.client import Client
from unmask_operator.kube.credentials import Credentials
from unmask_operator.kube.kinds import PODS
from unmask_operator.kube.watch_login import WatchLogin

pytestmark = pytest.mark.cluster

VERSION = "client.authentication.k8s.io/v1"


def exec_plugin(folder: Path, token: Path, runs: Path) -> dict[str, Any]:
    """Returns a kubeconfig user with an exec plug-in that prints the token of a file. The token expires after a day."""
    expiry = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    program = folder / "plugin"
    program.write_text(
        f"#!{sys.executable}\nimport json\n"
        f"open({str(runs)!r}, 'a').write('run\\n')\n"
        f"status = {{'token': open({str(token)!r}).read(), 'expirationTimestamp': {expiry!r}}}\n"
        f"print(json.dumps({{'apiVersion': {VERSION!r}, 'kind': 'ExecCredential', 'status': status}}))\n"
    )
    program.chmod(0o700)
    return {"exec": {"apiVersion": VERSION, "command": str(program), "interactiveMode": "Never"}}


def token_file(folder: Path, token: Path, runs: Path) -> dict[str, Any]:
    return {"tokenFile": str(token)}


@pytest.mark.parametrize("user_of", [exec_plugin, token_file])
def test_new_credentials_replace_those_that_the_api_server_refuses(
    api_server: ApiServer,
    admin: Kube,
    namespace: str,
    fault_proxy: FaultProxy,
    tmp_path: Path,
    user_of: Callable[[Path, Path, Path], dict[str, Any]],
) -> None:
    """Simulates a service account that was created again: the old tokens become invalid."""
    install(api_server, admin, namespace, [namespace])
    token, runs = tmp_path / "token", tmp_path / "runs"
    process = OperatorProcess(api_server, namespace, [namespace], server=fault_proxy.url)
    content = yaml.safe_load(process.kubeconfig.read_text())
    token.write_text(content["users"][0]["user"]["token"])
    content["users"][0]["user"] = user_of(tmp_path, token, runs)
    process.kubeconfig.write_text(json.dumps(content))
    with process as operator:
        wait_condition(admin, admin.create(demo(namespace, "before")), "Accepted", "True")
        account = admin.get("v1", "ServiceAccount", ACCOUNT, namespace)
        admin.delete(account)
        admin.create({**account, "metadata": {"name": ACCOUNT, "namespace": namespace}})
        fresh = tmp_path / "fresh"
        fresh.write_text(new_token(admin, namespace))
        fresh.replace(token)
        admin.wait("the old token is refused", lambda: any(seen.status == 401 for seen in fault_proxy.seen))
        fault_proxy.drop_watches()
        wait_condition(admin, admin.create(demo(namespace, "after")), "Accepted", "True")
        admin.wait("watches are open again", lambda: fault_proxy.watching() >= 10)
        assert operator.alive()
        operator.wait_ready()
        assert "Traceback" not in operator.log()
    if user_of is exec_plugin:
        assert len(runs.read_text().splitlines()) >= 2


def test_requests_and_watches_use_the_service_accounts_files_and_their_replacements(
    api_server: ApiServer, admin: Kube, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Simulates a pod whose kubelet replaces the token's file."""
    install(api_server, admin, namespace, [namespace])
    host, port = api_server.url.removeprefix("https://").split(":")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
    token, ca = tmp_path / "token", tmp_path / "ca.crt"
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(token))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(ca))
    token.write_text(new_token(admin, namespace))
    ca.write_bytes(kubeconfig.read(api_server.kubeconfig).authority)

    async def scene() -> None:
        credentials = Credentials()
        await credentials.load()
        client = Client(credentials)
        login = WatchLogin(credentials, "agent/1", lambda path: None, lambda status: None)
        server, session = await login.open()

        async def watch() -> int:
            async with session.get(f"{server}{PODS.path(namespace)}?watch=1&timeoutSeconds=1") as answer:
                return answer.status

        try:
            await client.list(PODS, namespace)
            assert await watch() == 200
            account = admin.get("v1", "ServiceAccount", ACCOUNT, namespace)
            admin.delete(account)
            admin.create({**account, "metadata": {"name": ACCOUNT, "namespace": namespace}})

            async def refused() -> bool:
                return await watch() == 401

            await wait_until_async(refused, "the old token is refused")
            token.write_text(new_token(admin, namespace))
            await client.list(PODS, namespace)
            assert await watch() == 200, "the open session does not send the new token"
        finally:
            await session.close()
            await client.close()

    asyncio.run(scene())


def new_token(admin: Kube, namespace: str) -> str:
    path = admin.path("v1", "ServiceAccount", namespace, ACCOUNT, "token")
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    token: str = admin.request("POST", path, request)["status"]["token"]
    return token

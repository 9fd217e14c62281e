"""Tests of an operator whose credentials the API server rejects while it runs."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.cluster import ApiServer, Kube
from e2e.cluster.operator_process import ACCOUNT, OperatorProcess, install
from tests.operator.live.objects import accepted, demo
from tests.operator.proxy import FaultProxy

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


def test_new_credentials_replace_those_that_the_api_server_refuses(
    api_server: ApiServer,
    admin: Kube,
    namespace: str,
    fault_proxy: FaultProxy,
    tmp_path: Path,
) -> None:
    """Simulates a service account that was created again: the old tokens become invalid."""
    install(api_server, admin, namespace, [namespace])
    token, runs = tmp_path / "token", tmp_path / "runs"
    process = OperatorProcess(api_server, namespace, [namespace], server=fault_proxy.url)
    content = yaml.safe_load(process.kubeconfig.read_text())
    token.write_text(content["users"][0]["user"]["token"])
    content["users"][0]["user"] = exec_plugin(tmp_path, token, runs)
    process.kubeconfig.write_text(json.dumps(content))
    with process as operator:
        accepted(admin, demo(namespace, "before"))
        account = admin.get("v1", "ServiceAccount", ACCOUNT, namespace)
        admin.delete(account)
        admin.create({**account, "metadata": {"name": ACCOUNT, "namespace": namespace}})
        fresh = tmp_path / "fresh"
        fresh.write_text(new_token(admin, namespace))
        fresh.replace(token)
        admin.wait("the old token is refused", lambda: any(seen.status == 401 for seen in fault_proxy.seen))
        fault_proxy.drop_watches()
        accepted(admin, demo(namespace, "after"))
        admin.wait("watches are open again", lambda: fault_proxy.watching() >= 10)
        assert operator.alive()
        operator.wait_ready()
        assert "Traceback" not in operator.log()
    assert len(runs.read_text().splitlines()) >= 2


def new_token(admin: Kube, namespace: str) -> str:
    path = admin.path("v1", "ServiceAccount", namespace, ACCOUNT, "token")
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    token: str = admin.request("POST", path, request)["status"]["token"]
    return token

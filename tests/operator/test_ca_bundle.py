"""Tests that TLS clients of an engine trust the authorities of the chart's ConfigMap and the public roots."""

import asyncio
import os
import ssl
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import certifi
import pytest
from aiohttp import web

from e2e.cluster.pki import Authority
from tests.operator.clients import http_server
from tests.operator.samples import SETTINGS, container, make, observe, resource, template
from unmask_operator.render.ca_bundle import VARIABLES

TRUSTED = replace(SETTINGS, ca_config_map="roots")
UNRELATED = {"NO_PROXY": "*", "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_TELEMETRY": "1"}
AUTHORITY = Authority("the cluster's own")


def rendered(**spec: Any) -> tuple[Any, Any]:
    """Returns the init container and the engine's container."""
    plan = make(observe(resource(**spec)), TRUSTED)
    (before,) = template(plan)["spec"]["initContainers"]
    return before, container(plan)


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    known = {name: value for name, value in os.environ.items() if not any(w in name.lower() for w in ("cert", "ca_"))}
    command = [sys.executable, *arguments]
    return subprocess.run(command, env=known | environment, capture_output=True, text=True, check=False)


def write(directory: Path, own: bytes) -> subprocess.CompletedProcess[str]:
    """Runs the init container's command with a directory instead of its mounts."""
    for name in ("ca", "trust"):
        (directory / name).mkdir()
    (directory / "ca/ca.crt").write_bytes(own)
    program, *arguments = (word.replace("/etc/unmask/", f"{directory}/") for word in rendered()[0]["command"])
    assert program == "python"
    return run(*arguments)


def trusting(directory: Path, code: str) -> subprocess.CompletedProcess[str]:
    """Runs code with the engine's variables of the CA bundle."""
    variables = {v["name"]: v.get("value", "") for v in rendered()[1]["env"]}
    paths = {name: variables[name].replace("/etc/unmask/", f"{directory}/") for name in VARIABLES}
    return run("-c", code, **paths, **UNRELATED)


# Client libraries, by their user agent.
CLIENTS = {
    "Python-urllib": "import urllib.request; urllib.request.urlopen(URL)",
    "python-httpx": "import httpx; httpx.get(URL, timeout=None)",
    "python-requests": "import requests; requests.get(URL)",
    "hf_hub": "from huggingface_hub import HfApi; HfApi(endpoint=URL).model_info('org/name')",
    "hf_xet": "import time, hf_xet; hf_xet.download_files([hf_xet.PyXetDownloadInfo('/dev/null', '0' * 64, 5)], URL, "
    "('token', int(time.time()) + 600), None, None)",
}


def test_every_client_trusts_the_clusters_authority(tmp_path: Path) -> None:
    """The server answers 404, which most clients raise."""
    assert write(tmp_path, AUTHORITY.certificate).returncode == 0
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(*AUTHORITY.issue("server", hosts=["127.0.0.1", "localhost"]).write(tmp_path, "server"))
    seen: list[str] = []

    async def handle(request: web.Request) -> web.Response:
        seen.append(request.headers.get("User-Agent", ""))
        return web.Response(status=404)

    async def attempt(code: str) -> subprocess.CompletedProcess[str]:
        async with http_server(handle, tls) as port:
            return await asyncio.to_thread(trusting, tmp_path, f"URL = 'https://localhost:{port}'\n{code}")

    attempts = "".join(f"with contextlib.suppress(Exception):\n    {code}\n" for code in CLIENTS.values())
    done = asyncio.run(attempt(f"import contextlib\n{attempts}"))
    assert done.returncode == 0, done.stderr
    assert [client for client in CLIENTS if not any(client in agent for agent in seen)] == []


def test_the_public_roots_are_trusted_too(tmp_path: Path) -> None:
    assert write(tmp_path, b"# ours\n" + AUTHORITY.certificate.rstrip()).returncode == 0
    done = trusting(tmp_path, "import ssl; print(len(ssl.create_default_context().get_ca_certs()))")
    roots = ssl.create_default_context(cafile=certifi.where()).get_ca_certs()
    assert int(done.stdout) == len(roots) + 1 > 50


@pytest.mark.parametrize("own", [b"", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"])
def test_the_last_line_names_a_file_that_is_no_certificate(own: bytes, tmp_path: Path) -> None:
    done = write(tmp_path, own)
    assert done.returncode == 1
    assert "ca.crt of the ConfigMap roots (engine.caConfigMap of the chart)" in done.stderr.splitlines()[-1]


def test_the_init_container_has_the_engines_image_and_resources() -> None:
    resources = {"limits": {"memory": "4Gi"}, "requests": {"cpu": "1"}}
    before, main = rendered(gpu={}, resources=resources, image="team/runtime:0.0.9")
    assert before["resources"] == resources, "the init container must have the resources of the spec, without a GPU"
    for member in ("image", "imagePullPolicy", "securityContext", "terminationMessagePolicy"):
        assert before[member] == main[member]
    assert main["volumeMounts"][-1] == {"name": "trust", "mountPath": "/etc/unmask/trust", "readOnly": True}

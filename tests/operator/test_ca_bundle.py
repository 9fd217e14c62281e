"""Tests that TLS clients of an engine trust the authorities of the chart's ConfigMap in addition to the public roots.

The init container's command writes the file. Each client sends a request to a server whose certificate the authority
has issued.
"""

from __future__ import annotations

import http.server
import os
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import certifi
import pytest

from e2e.cluster.pki import Authority
from tests.operator.samples import SETTINGS, container, make, observe, resource, template

TRUSTED = replace(SETTINGS, ca_config_map="roots")
UNRELATED = {"NO_PROXY": "*", "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_TELEMETRY": "1"}
AUTHORITY = Authority("the cluster's own")


def rendered(**spec: Any) -> tuple[Any, Any]:
    """Returns the init container and the engine's container."""
    plan = make(observe(resource(**spec)), TRUSTED)
    (before,) = template(plan)["spec"]["initContainers"]
    return before, container(plan)


def write(directory: Path, own: bytes) -> subprocess.CompletedProcess[str]:
    """Runs the init container's command with a directory instead of its mounts."""
    for name in ("ca", "trust"):
        (directory / name).mkdir()
    (directory / "ca/ca.crt").write_bytes(own)
    command = [word.replace("/etc/unmask/", f"{directory}/") for word in rendered()[0]["command"]]
    assert command[0] == "python"
    return subprocess.run([sys.executable, *command[1:]], capture_output=True, text=True, check=False)


def environment(directory: Path) -> dict[str, str]:
    """Returns the engine's variables of the CA bundle with paths in the directory, without those of this machine."""
    ours = {name: value for name, value in os.environ.items() if not any(w in name.lower() for w in ("cert", "ca_"))}
    named = {
        v["name"]: v["value"].replace("/etc/unmask/", f"{directory}/") for v in rendered()[1]["env"] if "value" in v
    }
    return ours | {n: v for n, v in named.items() if n in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")} | UNRELATED


@pytest.fixture
def asked(tmp_path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yields the port of a server with a certificate of the authority, and the user agents of its requests."""
    seen: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.headers.get("User-Agent", ""))
            self.send_response(404)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_HEAD = do_POST = do_GET

        def log_message(self, *_: object) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*AUTHORITY.issue("hub", hosts=["localhost"]).write(tmp_path, "server"))
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_address[1], seen
    server.shutdown()
    thread.join()
    server.server_close()


CLIENTS = {
    "Python-urllib": "import urllib.request; urllib.request.urlopen(URL)",
    "python-httpx": "import httpx; httpx.get(URL, timeout=None)",
    "python-requests": "import requests; requests.get(URL)",
    "hf_hub": "from huggingface_hub import HfApi; HfApi(endpoint=URL).model_info('org/name')",
    "hf_xet": "import time, hf_xet; hf_xet.download_files([hf_xet.PyXetDownloadInfo('/dev/null', '0' * 64, 5)], URL, "
    "('token', int(time.time()) + 600), None, None)",
}


@pytest.mark.parametrize("client", CLIENTS)
def test_every_client_trusts_the_clusters_authority(client: str, tmp_path: Path, asked: tuple[int, list[str]]) -> None:
    assert write(tmp_path, AUTHORITY.certificate).returncode == 0
    port, seen = asked
    code = CLIENTS[client].replace("URL", f"'https://localhost:{port}'")
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(tmp_path), capture_output=True, text=True, check=False
    )
    assert "404" in done.stderr or done.returncode == 0, done.stderr[-2000:]
    assert any(client in agent for agent in seen), seen


def test_the_public_roots_are_trusted_too(tmp_path: Path) -> None:
    assert write(tmp_path, b"# ours\n" + AUTHORITY.certificate.rstrip()).returncode == 0
    code = "import ssl; print(len(ssl.create_default_context().get_ca_certs()))"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(tmp_path), capture_output=True, text=True, check=True
    )
    roots = ssl.create_default_context(cafile=certifi.where()).get_ca_certs()
    assert int(done.stdout) == len(roots) + 1 > 50


@pytest.mark.parametrize("own", [b"", b"not PEM", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"])
def test_the_last_line_names_a_file_that_is_no_certificate(own: bytes, tmp_path: Path) -> None:
    done = write(tmp_path, own)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(
        "error: ca.crt of the ConfigMap roots (engine.caConfigMap of the chart) is no PEM certificate"
    )


def test_the_init_container_has_the_engines_image_and_resources() -> None:
    resources = {"limits": {"memory": "4Gi"}, "requests": {"cpu": "1"}}
    before, main = rendered(gpu={}, resources=resources, image="team/runtime:0.0.9")
    assert before["resources"] == resources, "the init container must have the resources of the spec, without a GPU"
    for member in ("image", "imagePullPolicy", "securityContext", "terminationMessagePolicy"):
        assert before[member] == main[member]
    assert main["volumeMounts"][-1] == {"name": "trust", "mountPath": "/etc/unmask/trust", "readOnly": True}


def test_without_a_config_map_nothing_is_added() -> None:
    plan = make(observe(resource()))
    assert "initContainers" not in template(plan)["spec"]
    assert not {"SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"} & {variable["name"] for variable in container(plan)["env"]}
    assert not {"ca", "trust"} & {volume["name"] for volume in template(plan)["spec"]["volumes"]}

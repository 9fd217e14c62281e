"""Tests that both charts can be pushed to an OCI registry and installed from there."""

import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml

from tests.operator.helm import CHART, CRDS, NAMESPACE, REGISTRY, helm, parse_objects, render, sets

pytestmark = pytest.mark.programs


class Registry(BaseHTTPRequestHandler):
    """The part of the OCI distribution API that helm uses. Content is stored by digest, and manifests also by tag."""

    protocol_version = "HTTP/1.1"
    content: dict[str, tuple[bytes, str]]

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_GET(self) -> None:
        if self.path == "/v2/":
            return self._answer(200)
        path, digest = self.path, self.path.rpartition("/")[2]
        body, kind = self.content.get(digest if ":" in digest else path, (b"", ""))
        return self._answer(200, body, Content_Type=kind, Docker_Content_Digest=_digest(body)) if body else self._none()

    do_HEAD = do_GET

    def _none(self) -> None:
        self._answer(404, json.dumps({"errors": [{"code": "NOT_FOUND"}]}).encode(), Content_Type="application/json")

    def do_POST(self) -> None:
        self._answer(202, Location=f"{self.path}upload")

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        address = urlsplit(self.path)
        names = [_digest(body), *parse_qs(address.query).get("digest", [self.path])]
        self.content |= dict.fromkeys(names, (body, self.headers["Content-Type"]))
        self._answer(201, Location=self.path, Docker_Content_Digest=_digest(body))


def _digest(body: bytes) -> str:
    return f"sha256:{hashlib.sha256(body).hexdigest()}"


@pytest.fixture
def registry() -> Iterator[str]:
    """Yields the host and port of an empty registry."""
    handler = type("Empty", (Registry,), {"content": {}})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_chart_from_a_registry_renders_the_same_objects(registry: str, tmp_path: Path) -> None:
    version = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))["version"]
    address = f"oci://{registry}/charts"
    helm("package", str(CHART), str(CRDS), "--destination", str(tmp_path))
    for chart in (CHART, CRDS):
        helm("push", str(tmp_path / f"{chart.name}-{version}.tgz"), address, "--plain-http")
    options = ("--namespace", NAMESPACE, "--kube-version", "1.34.4", "--version", version, "--plain-http")
    text = helm("template", CHART.name, f"{address}/{CHART.name}", *options, *sets(REGISTRY))
    assert parse_objects(text) == render()
    assert "CustomResourceDefinition" in helm("template", "crds", f"{address}/{CRDS.name}", *options)

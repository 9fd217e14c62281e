"""A custom metrics adapter that reports the same value for every requested pod.

    python metrics.py PORT

The API server forwards GET requests below /apis/custom.metrics.k8s.io. POST /value sets the value, which is 0 at first.
The TLS certificate and key are in /tls. The names of the pods are read from the API server with the pod's own token.
"""

from __future__ import annotations

import json
import re
import socket
import ssl
import sys
import time
import urllib.parse
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

GROUP = "custom.metrics.k8s.io/v1beta2"
ROOT = f"/apis/{GROUP}"
ASKED = re.compile(rf"{ROOT}/namespaces/([^/]+)/pods/\*/(\w+)")
METRIC = "unmask_requests_waiting"
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
API_SERVER = "https://kubernetes.default.svc"


def pods(namespace: str, query: str) -> list[str]:
    """Returns the names of the pods that match the query's label selector."""
    selector = re.search(r"(?:^|&)(labelSelector=[^&]*)", query)
    url = f"{API_SERVER}/api/v1/namespaces/{namespace}/pods?{selector[1] if selector else ''}"
    token = (ACCOUNT / "token").read_text()
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
    trust = ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt"))
    with urllib.request.urlopen(request, timeout=10, context=trust) as answer:
        return [pod["metadata"]["name"] for pod in json.load(answer)["items"]]


class Handler(BaseHTTPRequestHandler):
    """Handles the API server's GET requests, and the test's POST requests that set the value."""

    protocol_version = "HTTP/1.1"
    value = "0"

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        path = urllib.parse.unquote(path)
        if path == ROOT:
            resource = {"name": f"pods/{METRIC}", "singularName": "", "namespaced": True, "kind": "MetricValueList"}
            listed = {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": GROUP}
            self.answer(200, listed | {"resources": [resource | {"verbs": ["get"]}]})
        elif (asked := ASKED.fullmatch(path)) and asked[2] == METRIC:
            items = [self.measured(asked[1], name) for name in pods(asked[1], query)]
            self.answer(200, {"kind": "MetricValueList", "apiVersion": GROUP, "metadata": {}, "items": items})
        else:
            status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}
            self.answer(404, status | {"message": f"no metric at {path}"})

    def do_POST(self) -> None:
        Handler.value = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["value"]
        self.answer(200, {"value": self.value})

    def measured(self, namespace: str, name: str) -> dict[str, object]:
        described = {"kind": "Pod", "apiVersion": "v1", "namespace": namespace, "name": name}
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        return {"describedObject": described, "metric": {"name": METRIC}, "timestamp": now, "value": self.value}

    def answer(self, status: int, body: dict[str, object]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


class Server(ThreadingHTTPServer):
    """Accepts IPv6 and IPv4, or IPv4 alone on a host without IPv6."""

    address_family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()


def main() -> None:
    server = Server(("", int(sys.argv[1])), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain("/tls/tls.crt", "/tls/tls.key")
    # The thread of each connection does the handshake, so that a silent connection, such as a probe's, blocks no other.
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    server.serve_forever()


if __name__ == "__main__":
    main()

"""Runs a mutating admission webhook for a test: an HTTPS server in a thread, and its configuration."""

from __future__ import annotations

import base64
import contextlib
import json
import ssl
import tempfile
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from e2e.cluster import Kube
from e2e.cluster.pki import Authority

Obj = dict[str, Any]
ADMISSION = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration"}


@contextlib.contextmanager
def mutating_webhook(
    kube: Kube, namespace: str, group: str, plural: str, patch: Callable[[Obj], list[Obj]]
) -> Iterator[Obj]:
    """Installs a webhook that applies `patch` to each object of a kind that is written in the namespace.

    `patch` returns a JSON patch.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["request"]
            operations = base64.b64encode(json.dumps(patch(request["object"])).encode()).decode()
            response = {"uid": request["uid"], "allowed": True, "patchType": "JSONPatch", "patch": operations}
            body = json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response})
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_: object) -> None:
            pass

    authority = Authority("webhook")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.TemporaryDirectory() as directory:
        pair = authority.issue("webhook", hosts=["127.0.0.1"])
        context.load_cert_chain(*pair.write(Path(directory), "webhook"))
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, name="webhook", daemon=True)
    thread.start()
    rule = {"apiGroups": [group], "apiVersions": ["*"], "resources": [plural], "operations": ["CREATE", "UPDATE"]}
    webhook = {
        "name": f"{plural}.example.com",
        "clientConfig": {
            "url": f"https://127.0.0.1:{server.server_address[1]}/",
            "caBundle": base64.b64encode(authority.certificate).decode(),
        },
        "rules": [rule],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
        "failurePolicy": "Fail",
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "timeoutSeconds": 30,
    }
    configuration = kube.create({**ADMISSION, "metadata": {"name": f"{plural}-{namespace}"}, "webhooks": [webhook]})
    try:
        yield configuration
    finally:
        kube.delete(configuration)
        server.shutdown()
        server.server_close()
        thread.join()

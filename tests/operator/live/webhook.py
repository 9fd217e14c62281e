"""A mutating admission webhook for a test."""

import base64
import contextlib
import json
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from typing import Any

from e2e.cluster import Kube
from e2e.cluster.pki import Authority
from tests.operator.https import https_server

Obj = dict[str, Any]
ADMISSION = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration"}


@contextlib.contextmanager
def mutating_webhook(
    kube: Kube, namespace: str, group: str, plural: str, patch: Callable[[Obj], list[Obj]]
) -> Iterator[Obj]:
    """Installs a webhook that applies `patch` to each object of a kind that is written in the namespace.

    `patch` returns a JSON patch.
    """

    def respond(http: BaseHTTPRequestHandler) -> tuple[int, bytes]:
        request = json.loads(http.rfile.read(int(http.headers["Content-Length"])))["request"]
        operations = base64.b64encode(json.dumps(patch(request["object"])).encode()).decode()
        response = {"uid": request["uid"], "allowed": True, "patchType": "JSONPatch", "patch": operations}
        review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}
        return 200, json.dumps(review).encode()

    authority = Authority("webhook")
    rule = {"apiGroups": [group], "apiVersions": ["*"], "resources": [plural], "operations": ["CREATE", "UPDATE"]}
    webhook = {
        "name": f"{plural}.example.com",
        "rules": [rule],
        "failurePolicy": "Fail",
        "timeoutSeconds": 30,
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
    }
    with https_server(authority, respond) as port:
        bundle = base64.b64encode(authority.certificate).decode()
        webhook["clientConfig"] = {"url": f"https://127.0.0.1:{port}/", "caBundle": bundle}
        configuration = kube.create({**ADMISSION, "metadata": {"name": f"{plural}-{namespace}"}, "webhooks": [webhook]})
        try:
            yield configuration
        finally:
            kube.delete(configuration)

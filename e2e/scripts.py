"""Pods that run clients and the scripts of e2e/stubs.

They use the runtime's image, which has Python and is on the node already. They pass the restricted Pod Security level.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from e2e.cluster import Kube
from e2e.cluster.kube import Obj
from e2e.services import EXAMPLES, POD_TIMEOUT, is_ready, kubectl

STUBS = Path(__file__).parent / "stubs"
IMAGE: str = yaml.safe_load((EXAMPLES / "client-job.yaml").read_text())["spec"]["template"]["spec"]["containers"][0][
    "image"
]
CHECKPOINT = "/opt/unmask/app/runtime/demo/checkpoint"  # of the demo model, in that image
PORT = 8080

_WAIT = "import signal; signal.sigwait([signal.SIGTERM])"
_ASK = """
import json, socket, sys, time, urllib.error, urllib.parse, urllib.request

url, key, body = sys.argv[1:]
place = urllib.parse.urlsplit(url)
headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
request = urllib.request.Request(url, data=body.encode() or None, headers=headers)
deadline = time.monotonic() + 180
while True:
    try:  # a Service leads to a pod only some time after that is Ready: until then to nobody, or to whoever was there
        socket.create_connection((place.hostname, place.port or 80), 10).close()
        answer = urllib.request.urlopen(request, timeout=180)
        break
    except urllib.error.HTTPError as error:
        answer = error
        break
    except OSError as error:
        answers_late = isinstance(error, urllib.error.URLError) and isinstance(error.reason, TimeoutError)
        if answers_late or time.monotonic() > deadline:
            raise
        time.sleep(0.2)
print(json.dumps([answer.status, json.loads(answer.read())]))
"""


def python_pod(namespace: str, name: str, command: list[str], **more: Any) -> Obj:
    """Returns a pod that runs `python COMMAND`. `more` are further members of its container."""
    container = {
        "name": "main",
        "image": IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python", *command],
        "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    } | more
    spec = {
        "containers": [container],
        "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": False,
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
    }
    meta = {"name": name, "namespace": namespace, "labels": {"app": name}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


def script_pod(kube: Kube, namespace: str, script: str, *arguments: str) -> Obj:
    """Returns a pod named `script` that runs e2e/stubs/SCRIPT.py, which listens on PORT.

    The ConfigMap with the script is created immediately; the pod is not.
    """
    text = (STUBS / f"{script}.py").read_text()
    meta = {"name": script, "namespace": namespace}
    kube.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"script.py": text}})
    pod = python_pod(
        namespace,
        script,
        ["/script/script.py", *arguments],
        readinessProbe={"tcpSocket": {"port": PORT}, "periodSeconds": 1},
        volumeMounts=[{"name": "script", "mountPath": "/script"}],
    )
    pod["spec"]["volumes"] = [{"name": "script", "configMap": {"name": script}}]
    return pod


def serve(kube: Kube, pod: Obj, port: int = 80) -> None:
    """Runs a script's pod behind a Service with the same name. Returns when the script listens."""
    meta = {key: pod["metadata"][key] for key in ("name", "namespace")}
    kube.create(pod)
    spec = {"selector": pod["metadata"]["labels"], "ports": [{"port": port, "targetPort": PORT}]}
    kube.create({"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": spec})
    wait_ready(kube, meta["namespace"], meta["name"])


def wait_ready(kube: Kube, namespace: str, pod: str) -> None:
    kube.wait(f"pod {pod}", lambda: is_ready(kube.get("v1", "Pod", pod, namespace)), timeout=POD_TIMEOUT)


class Client:
    """Runs a pod named `client` that sends requests for a test."""

    def __init__(self, kube: Kube, namespace: str) -> None:
        self._namespace = namespace
        kube.create(python_pod(namespace, "client", ["-c", _WAIT]))
        wait_ready(kube, namespace, "client")

    def send(self, url: str, body: Obj | None = None, key: str = "") -> tuple[int, Obj]:
        """Returns the status and the JSON of the response."""
        text = json.dumps(body) if body else ""
        output = kubectl("exec", "client", "--", "python", "-c", _ASK, url, key, text, namespace=self._namespace)
        status, answer = json.loads(output)
        return status, answer

    def ask(self, service: str = "demo", key: str = "", question: str = "Solve: 12 + 30.") -> tuple[int, Obj]:
        """Sends a question that the demo model can answer to `service`. Returns the status and the JSON."""
        body = {"model": service, "messages": [{"role": "user", "content": question}]}
        return self.send(f"http://{service}/v1/chat/completions", body, key)


def text(answer: tuple[int, Obj]) -> str:
    """Returns the text of a completion. Raises AssertionError if the status is not 200."""
    status, body = answer
    assert status == 200, body
    return str(body["choices"][0]["message"]["content"])

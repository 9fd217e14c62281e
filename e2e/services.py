"""DiffusionLMServices as the tests make, change and watch them, and kubectl as a user runs it."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import yaml

from e2e.cluster import Kube
from e2e.cluster.config import environment
from e2e.cluster.kube import ApiError, Obj

EXAMPLES = Path(__file__).parents[1] / "examples"
API, KIND = "serving.unmask.dev/v1alpha1", "DiffusionLMService"
POD_TIMEOUT = 600.0  # seconds until an engine's pod is as a test wants it: on a busy node its imports take minutes
LABEL = "serving.unmask.dev/service"  # its value on every pod and child is the service's name


def kubectl_command(*arguments: str, namespace: str) -> list[str]:
    """The command line: for the cluster under test, whichever one the shell's own KUBECONFIG names."""
    return ["kubectl", "--kubeconfig", str(environment().kubeconfig), "--namespace", namespace, *arguments]


def kubectl(*arguments: str, namespace: str, stdin: str = "", refused: bool = False) -> str:
    """kubectl's stdout; with `refused` its stderr. AssertionError when it ends otherwise than that says."""
    command = kubectl_command(*arguments, namespace=namespace)
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=600)
    assert (done.returncode != 0) == refused, done.stderr or done.stdout
    return done.stderr if refused else done.stdout


def demo(namespace: str, name: str = "demo", spec: Obj | None = None) -> Obj:
    """The service of examples/demo-service.yaml with the members of `spec` laid over its own (None takes one away)."""
    service: Obj = yaml.safe_load((EXAMPLES / "demo-service.yaml").read_text())
    service["metadata"] = {"name": name, "namespace": namespace}
    service["spec"] = _over(service["spec"], spec or {})
    return service


def _over(below: Obj, above: Obj) -> Obj:
    merged = below | {
        key: _over(below.get(key) or {}, value) if isinstance(value, dict) else value for key, value in above.items()
    }
    return {key: value for key, value in merged.items() if value is not None}


def get(kube: Kube, namespace: str, name: str = "demo") -> Obj:
    return kube.get(API, KIND, name, namespace)


def patch(kube: Kube, namespace: str, spec: Obj, name: str = "demo") -> Obj:
    """Change members of the spec by a merge patch, as `kubectl patch` does."""
    return kube.patch(demo(namespace, name), {"spec": spec})


def pods(kube: Kube, namespace: str, name: str = "demo") -> list[Obj]:
    """The service's engine pods, those on their way out included."""
    return kube.list("v1", "Pod", namespace, labelSelector=f"{LABEL}={name}")


def condition(obj: Obj, kind: str) -> Obj:
    """A condition by its type, {} where there is none."""
    return next((one for one in obj.get("status", {}).get("conditions", ()) if one["type"] == kind), {})


def is_ready(pod: Obj) -> bool:
    return condition(pod, "Ready").get("status") == "True"


def wait_condition(
    kube: Kube,
    namespace: str,
    kind: str = "Ready",
    status: str = "True",
    *,
    name: str = "demo",
    reason: str = "",
    says: str = "",
    timeout: float = POD_TIMEOUT,
) -> Obj:
    """Wait until the operator says this, with this reason and these words where given, of the spec as it is now.

    Returns the condition. AssertionError with what kubectl tells of the service, its pods and Events when it does not.
    """

    def found() -> Obj | None:
        service = get(kube, namespace, name)
        it = condition(service, kind)
        if it.get("observedGeneration") != service["metadata"]["generation"] or it["status"] != status:
            return None
        return it if reason in ("", it["reason"]) and says in it["message"] else None

    what = f"{name}: {kind}={status} {reason} {says!r}"
    start = time.monotonic()
    try:
        it = kube.wait(what, found, timeout=timeout)
    except TimeoutError as error:
        description = kubectl("describe", "dlms,deployments,pods", namespace=namespace)
        raise AssertionError(f"{error}\n{description}") from None
    print(f"{what} after {time.monotonic() - start:.1f} s: {it['message']}")
    return it


def engines(kube: Kube, namespace: str) -> dict[str, int]:
    """Every engine pod of a namespace by its uid, with its restarts: what stays the same while engines run on."""
    found = kube.list("v1", "Pod", namespace, labelSelector=LABEL)
    return {
        pod["metadata"]["uid"]: sum(one["restartCount"] for one in pod["status"].get("containerStatuses", ()))
        for pod in found
    }


def ask(kube: Kube, namespace: str, name: str = "demo", question: str = "What is 6 times 7?", model: str = "") -> str:
    """The answer of a service, or of an adapter of it, asked through the API server's proxy of its Service. LookupError
    where it has no such model: a 404 that no waiting would change."""
    path = kube.path("v1", "Service", namespace, f"{name}:http", "proxy")
    body = {"model": model or name, "messages": [{"role": "user", "content": question}], "max_tokens": 32}

    def answered() -> Obj | None:
        try:
            return kube.request("POST", f"{path}/v1/chat/completions", body)
        except ApiError as error:
            if error.status == 404 and "model_not_found" in error.message:
                raise LookupError(error.message) from None
            if "no endpoints available" not in error.message:  # the EndpointSlice follows the pod's condition
                raise
            return None

    answer = kube.wait(f"an answer of {name}", answered)
    text: str = answer["choices"][0]["message"]["content"]
    return text

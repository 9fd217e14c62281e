"""Helpers that create, change and watch DiffusionLMServices, and run kubectl as a user does."""

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
POD_TIMEOUT = 600.0  # seconds to wait for an engine's pod: on a busy node its imports take minutes
LABEL = "serving.unmask.dev/service"  # its value on every pod and child is the service's name


def kubectl_command(*arguments: str, namespace: str) -> list[str]:
    """Returns a kubectl command line for the cluster under test. It ignores the shell's KUBECONFIG."""
    return ["kubectl", "--kubeconfig", str(environment().kubeconfig), "--namespace", namespace, *arguments]


def kubectl(*arguments: str, namespace: str, stdin: str = "", refused: bool = False) -> str:
    """Runs kubectl and returns its stdout, or its stderr if `refused`.

    Raises:
        AssertionError: kubectl failed although `refused` is false, or succeeded although it is true.
    """
    command = kubectl_command(*arguments, namespace=namespace)
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=600)
    assert (done.returncode != 0) == refused, done.stderr or done.stdout
    return done.stderr if refused else done.stdout


def demo(namespace: str, name: str = "demo", spec: Obj | None = None) -> Obj:
    """Returns the service of examples/demo-service.yaml with `spec` merged into its own. None removes a member."""
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
    """Changes members of the spec with a merge patch, as `kubectl patch --type=merge` does."""
    return kube.patch(demo(namespace, name), {"spec": spec})


def pods(kube: Kube, namespace: str, name: str = "demo") -> list[Obj]:
    """Returns the service's engine pods, including those that are being deleted."""
    return kube.list("v1", "Pod", namespace, labelSelector=f"{LABEL}={name}")


def condition(obj: Obj, kind: str) -> Obj:
    """Returns the condition of this type; {} if there is none."""
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
    """Waits until a condition of the current generation has this status, and this reason and text if given.

    Args:
        kind: Type of the condition.
        says: Text that the message must contain.

    Returns:
        The condition.

    Raises:
        AssertionError: The condition did not reach this state in time. The message has the output of
            `kubectl describe` for the service, its Deployments and its pods.
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
    """Returns the number of restarts per engine pod of a namespace, by the pod's uid.

    The result is unchanged if no pod was replaced and no container restarted.
    """
    found = kube.list("v1", "Pod", namespace, labelSelector=LABEL)
    return {
        pod["metadata"]["uid"]: sum(one["restartCount"] for one in pod["status"].get("containerStatuses", ()))
        for pod in found
    }


def ask(kube: Kube, namespace: str, name: str = "demo", question: str = "What is 6 times 7?", model: str = "") -> str:
    """Returns the completion of a service or of one of its adapters.

    The request passes through the API server's proxy of the Service.

    Raises:
        LookupError: The service has no such model (404).
    """
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

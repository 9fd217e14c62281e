"""Tests of a service's LoRA adapters: selection by `model`, changes while it serves, and reports of failed adapters."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from e2e.cluster import Kube
from e2e.cluster.kube import Obj
from e2e.scripts import CHECKPOINT, IMAGE, STUBS
from e2e.services import EXAMPLES, POD_TIMEOUT, ask, condition, demo, engines, get, kubectl, patch, wait_condition

FIRST, SECOND = ({"name": name, "uri": f"pvc://made/{name}"} for name in ("first", "second"))
WRONG = {"name": "wrong", "uri": "pvc://made/nothing-here"}


def with_made_adapters(namespace: str, *adapters: Obj, **lora_fields: Any) -> Obj:
    """Returns the demo service with an init container that writes two adapters to the directory of claim `made`."""
    volume: Obj = {"name": "adapters-0", "emptyDir": {}}
    script = (STUBS / "adapters.py").read_text()
    writer = {
        "name": "writer",
        "image": IMAGE,
        "command": ["python", "-c", script, CHECKPOINT, "/made/first", "/made/second"],
        "volumeMounts": [{"name": "adapters-0", "mountPath": "/made"}],
        "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}},
    }
    lora = {"claimNames": ["made"], "adapters": list(adapters), **lora_fields}
    return demo(
        namespace, spec={"lora": lora, "podTemplate": {"spec": {"volumes": [volume], "initContainers": [writer]}}}
    )


def answer(kube: Kube, namespace: str, model: str) -> str:
    """Returns the completion of a model of the service `demo`; "404" if there is no such model."""
    try:
        return ask(kube, namespace, model=model)
    except LookupError:
        return "404"


def soon(kube: Kube, what: str, there: Callable[[], Any]) -> None:
    start = time.monotonic()
    kube.wait(what, there, timeout=POD_TIMEOUT)
    print(f"{what} after {time.monotonic() - start:.1f} s")


@pytest.mark.smoke
def test_adapters_are_added_and_removed_while_the_service_serves(kube: Kube, namespace: str) -> None:
    kube.create(with_made_adapters(namespace, FIRST))
    wait_condition(kube, namespace)
    wait_condition(kube, namespace, "AdaptersLoaded")
    base = answer(kube, namespace, "demo")
    assert answer(kube, namespace, "first") not in (base, "404"), "the adapter was not loaded when its pod became ready"
    assert answer(kube, namespace, "second") == "404"
    before = engines(kube, namespace)

    patch(kube, namespace, {"lora": {"adapters": [FIRST, SECOND]}})
    soon(kube, "the second adapter", lambda: answer(kube, namespace, "second") != "404")
    assert len({answer(kube, namespace, name) for name in ("demo", "first", "second")}) == 3
    wait_condition(kube, namespace, "AdaptersLoaded")

    patch(kube, namespace, {"lora": {"adapters": [FIRST, SECOND, WRONG]}})
    loaded = wait_condition(kube, namespace, "AdaptersLoaded", "False", reason="AdapterFailed")
    assert "wrong in 1 of 1 pods" in loaded["message"]
    assert "nothing-here" in loaded["message"]
    service = get(kube, namespace)
    assert condition(service, "Ready")["status"] == "True"
    assert [(one["name"], one["ready"], one["failed"]) for one in service["status"]["adapters"]] == [
        ("first", 1, 0), ("second", 1, 0), ("wrong", 0, 1),
    ]  # fmt: skip
    assert [one["type"] for one in kube.events(namespace, "AdapterFailed")] == ["Warning"]

    patch(kube, namespace, {"lora": {"adapters": [SECOND]}})
    soon(kube, "the first one's end", lambda: answer(kube, namespace, "first") == "404")
    wait_condition(kube, namespace, "AdaptersLoaded")
    assert answer(kube, namespace, "demo") == base
    assert engines(kube, namespace) == before, "a pod was replaced or restarted"


def test_a_premerged_adapter_serves_both_model_names(kube: Kube, namespace: str) -> None:
    kube.create(with_made_adapters(namespace, FIRST, preMerge=True))
    wait_condition(kube, namespace)
    assert answer(kube, namespace, "demo") == answer(kube, namespace, "first") != "404"
    assert condition(get(kube, namespace), "AdaptersLoaded") == {}


def test_the_example_serves_its_adapter(kube: Kube, namespace: str) -> None:
    kubectl("apply", "-f", str(EXAMPLES / "adapters.yaml"), namespace=namespace)
    wait_condition(kube, namespace, "Ready", name="demo-lora")
    wait_condition(kube, namespace, "AdaptersLoaded", name="demo-lora")
    answers = {model: ask(kube, namespace, "demo-lora", model=model) for model in ("demo-lora", "roman")}
    assert answers["roman"] != answers["demo-lora"], answers
    listed = kubectl("get", "dlms", "demo-lora", "--output=wide", namespace=namespace).splitlines()
    assert "ADAPTERS" in listed[0]

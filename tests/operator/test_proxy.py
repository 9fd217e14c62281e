"""Tests that the proxy injects faults into the selected requests and passes on all others unchanged."""

from __future__ import annotations

import json
import threading
from functools import partial

import httpx
import pytest
from urllib3.exceptions import HTTPError

from e2e.cluster import ApiError, ApiServer, Kube, kubeconfig
from tests.operator.proxy import FaultProxy

pytestmark = pytest.mark.cluster


@pytest.fixture
def kube(api_server: ApiServer, fault_proxy: FaultProxy) -> Kube:
    return Kube(api_server.kubeconfig_through(fault_proxy.url))


def config_map(namespace: str, name: str = "a") -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": namespace},
        "data": {"k": "v"},
    }


def test_requests_without_a_fault_pass(kube: Kube, admin: Kube, fault_proxy: FaultProxy, namespace: str) -> None:
    kube.create(config_map(namespace))
    kube.apply({**config_map(namespace), "data": {"k": "w"}})
    assert admin.get("v1", "ConfigMap", "a", namespace)["data"] == {"k": "w"}
    assert [(seen.method, seen.status) for seen in fault_proxy.writes()] == [("POST", 201), ("PATCH", 200)]


@pytest.mark.parametrize(("status", "reason"), [(409, "Conflict"), (429, "TooManyRequests"), (500, "InternalError")])
def test_a_refused_write_never_reaches_the_server(
    kube: Kube, admin: Kube, fault_proxy: FaultProxy, namespace: str, status: int, reason: str
) -> None:
    fault_proxy.fail(status, "/configmaps", methods=("POST",))
    with pytest.raises(ApiError) as refused:
        kube.create(config_map(namespace))
    assert (refused.value.status, refused.value.reason) == (status, reason)
    assert admin.find("v1", "ConfigMap", "a", namespace) is None
    kube.create(config_map(namespace))  # the fault applies once
    assert admin.find("v1", "ConfigMap", "a", namespace)


@pytest.mark.parametrize("status", [429, 503])
def test_a_write_rejected_with_retry_after_is_repeated(
    kube: Kube, fault_proxy: FaultProxy, namespace: str, status: int
) -> None:
    fault_proxy.fail(status, "/configmaps", methods=("POST",), retry_after=1)
    kube.create(config_map(namespace))
    assert [(seen.method, seen.status) for seen in fault_proxy.writes()] == [("POST", status), ("POST", 201)]


def test_faults_are_injected_in_order(kube: Kube, fault_proxy: FaultProxy, namespace: str) -> None:
    fault_proxy.fail(500, "/configmaps", methods=("POST",), after=1, times=2)
    kube.create(config_map(namespace, "first"))
    for name in ("second", "third"):
        with pytest.raises(ApiError, match="500"):
            kube.create(config_map(namespace, name))
    kube.create(config_map(namespace, "fourth"))


def test_an_error_inside_a_stream_is_its_only_event(
    api_server: ApiServer, fault_proxy: FaultProxy, namespace: str
) -> None:
    fault_proxy.fail(410, "/configmaps.*watch=1", in_stream=True)
    headers = kubeconfig.read(api_server.kubeconfig_through(fault_proxy.url)).headers
    url = f"{fault_proxy.url}/api/v1/namespaces/{namespace}/configmaps?watch=1"
    answer = httpx.get(url, headers=headers, timeout=None, trust_env=False)
    assert answer.status_code == 200
    (event,) = map(json.loads, answer.text.splitlines())
    assert (event["type"], event["object"]["code"]) == ("ERROR", 410)


def test_a_dropped_connection_is_no_answer(kube: Kube, fault_proxy: FaultProxy, namespace: str) -> None:
    kube.path("v1", "ConfigMap")  # the discovery request precedes the fault
    fault_proxy.fail(0, "/configmaps")
    with pytest.raises(HTTPError):
        kube.get("v1", "ConfigMap", "a", namespace)


def test_a_held_request_reaches_the_server_once_it_is_released(
    kube: Kube, api_server: ApiServer, admin: Kube, fault_proxy: FaultProxy, namespace: str
) -> None:
    held = []

    def hold(method: str, path: str, body: bytes) -> bool:
        found = method == "POST" and b'"a"' in body
        if found:
            held.append(path)
        return found

    fault_proxy.hold = hold
    headers = kubeconfig.read(api_server.kubeconfig_through(fault_proxy.url)).headers
    url = f"{fault_proxy.url}/api/v1/namespaces/{namespace}/configmaps"
    ask = partial(httpx.post, url, json=config_map(namespace), headers=headers, timeout=None, trust_env=False)
    answers = []
    client = threading.Thread(target=lambda: answers.append(ask()), daemon=True)
    client.start()
    admin.wait("the request is held", lambda: held)
    kube.create(config_map(namespace, "b"))
    assert admin.find("v1", "ConfigMap", "a", namespace) is None
    fault_proxy.release()
    client.join()
    assert [answer.status_code for answer in answers] == [201]
    assert admin.find("v1", "ConfigMap", "a", namespace)


def test_watches_stream_and_can_be_dropped(
    api_server: ApiServer, admin: Kube, fault_proxy: FaultProxy, namespace: str
) -> None:
    events: list[str] = []
    ended = threading.Event()
    headers = kubeconfig.read(api_server.kubeconfig_through(fault_proxy.url)).headers

    def watch() -> None:
        url = f"{fault_proxy.url}/api/v1/namespaces/{namespace}/configmaps?watch=1"
        try:
            with httpx.stream("GET", url, headers=headers, timeout=None, trust_env=False) as stream:
                events.extend(json.loads(line)["object"]["metadata"]["name"] for line in stream.iter_lines())
        except httpx.TransportError:
            ended.set()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    admin.wait("the watch", lambda: fault_proxy.watching() == 1)
    admin.create(config_map(namespace))
    admin.wait("the event", lambda: "a" in events)
    assert fault_proxy.drop_watches() == 1
    watcher.join()
    assert ended.is_set()

"""Tests of the client with a small HTTP server: its requests, its interpretation of answers, and its retries."""

import asyncio
import contextlib
import json
import os
import socket
import ssl
import tempfile
from pathlib import Path

import pytest
import yaml
from aiohttp import web

from e2e.cluster import kubeconfig
from e2e.cluster.pki import Authority
from tests.operator.clients import client_of, http_server
from unmask_operator.kinds import DLMS, PODS, kind_of
from unmask_operator.kube.client import LIST_TRIES, PAGE, encode
from unmask_operator.kube.errors import ApiError
from unmask_operator.objects import FIELD_MANAGER

LONG = 600.0  # seconds; even a slow machine does not reach it
CONFIG = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "a", "namespace": "ns"}}


@contextlib.asynccontextmanager
async def client_at(url, renewed="t1"):
    """Yields a client of a server. Its kubeconfig has a token, which is replaced after the first read."""
    with tempfile.TemporaryDirectory() as folder:
        file = kubeconfig.write(Path(folder) / "config", url, b"", user="u", token="t1")
        async with client_of(file) as client:
            kubeconfig.write(file, url, b"", user="u", token=renewed)
            yield client


class Server:
    """Fake server that records requests and answers with the next (status, body, headers). The last one stays."""

    def __init__(self, *answers):
        self.answers = list(answers) or [(200, {}, {})]
        self.seen = []

    async def handle(self, request):
        body = await request.read()
        self.seen.append(
            (request.method, request.path, dict(request.query), yaml.safe_load(body or b"null"), request.headers)
        )
        status, answer, headers = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        text = answer if isinstance(answer, str) else json.dumps(answer)
        return web.Response(status=status, text=text, headers=headers, content_type="application/json")

    def run(self, scene, renewed="t1"):
        """Runs `scene(client)`. The second time the credentials are read, the token is `renewed`."""

        async def scenario():
            async with http_server(self.handle) as port, client_at(f"http://127.0.0.1:{port}", renewed) as client:
                return await scene(client)

        return asyncio.run(scenario())

    def raises(self, scene, match=None):
        """Returns the error of `scene(client)`."""
        with pytest.raises(ApiError, match=match) as error:
            self.run(scene)
        return error.value


def error(code, reason, message, headers=None, **details):
    status = {"kind": "Status", "code": code, "reason": reason, "message": message, "details": details}
    return code, status, headers or {}


def get_pod(client):
    return client.get(PODS, "ns", "p")


def with_meta(obj, **metadata):
    return {**obj, "metadata": {**obj["metadata"], **metadata}}


STRICT = {"fieldManager": FIELD_MANAGER, "fieldValidation": "Strict"}
MERGED = {"fieldManager": FIELD_MANAGER}
MERGE = "application/merge-patch+json"
REVISION = {"apiVersion": "apps/v1", "kind": "ControllerRevision", "metadata": CONFIG["metadata"], "data": {"a": "<"}}
LIVE = with_meta(CONFIG, uid="u")
OURS = {"manager": FIELD_MANAGER, "operation": "Update"}
CREATED, READ = with_meta(LIVE, managedFields=[OURS]), with_meta(LIVE, resourceVersion="7")
LEASE = {"metadata": {"name": "l", "namespace": "n", "resourceVersion": "5"}, "spec": {}}
CORE, APPS = "/api/v1/namespaces/ns", "/apis/apps/v1/namespaces/ns"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/n/leases"
ACCOUNTS = f"{CORE}/serviceaccounts"
OWN = "/apis/serving.unmask.dev/v1alpha1/namespaces/ns/diffusionlmservices/a"
DRY = {**STRICT, "dryRun": "All"}
JSON, JSON_PATCH, YAML = "application/json", "application/json-patch+json", "application/yaml"
APPLY = "application/apply-patch+yaml; charset=utf-8"
DEPLOYMENTS = kind_of("apps/v1", "Deployment")
DELETE = {"preconditions": {"uid": "u"}, "propagationPolicy": "Background"}


def step(op, path, value):
    return {"op": op, "path": path, "value": value}


SAME, ENTRY = step("test", "/metadata/uid", "u"), "/metadata/managedFields/0"
FIELDS = [SAME, step("test", f"{ENTRY}/manager", FIELD_MANAGER), step("test", f"{ENTRY}/operation", "Update"),
          step("replace", f"{ENTRY}/operation", "Apply")]  # fmt: skip
REPLACED = [SAME, step("test", "/metadata/resourceVersion", "7"), step("replace", "/spec", {"a": 2})]
OF_POD = {"metadata": {"uid": "u", "annotations": {"a": "b"}}}
OF_STATUS = {"metadata": {"uid": "u"}, "status": {"b": 1}}
OF_SCALE = {"metadata": {"uid": "u"}, "spec": {"replicas": 2}}
# The call, the method, path, query and body of its request, and their media type.
WRITES = {
    "create": (lambda c: c.create(CONFIG), "POST", ACCOUNTS, STRICT, CONFIG, JSON),
    "dry run": (lambda c: c.create(CONFIG, dry_run=True), "POST", ACCOUNTS, DRY, CONFIG, JSON),
    "revision": (lambda c: c.create(REVISION), "POST", f"{APPS}/controllerrevisions", STRICT, REVISION, YAML),
    "apply": (lambda c: c.apply(CONFIG, "u"), "PATCH", f"{ACCOUNTS}/a", {**STRICT, "force": "true"}, LIVE, APPLY),
    "fields": (lambda c: c.upgrade_managed_fields(CREATED), "PATCH", f"{ACCOUNTS}/a", STRICT, FIELDS, JSON_PATCH),
    "replace": (lambda c: c.replace_spec(READ, {"a": 2}, True), "PATCH", f"{ACCOUNTS}/a", DRY, REPLACED, JSON_PATCH),
    "delete": (lambda c: c.delete(DEPLOYMENTS, "ns", "a", "u"), "DELETE", f"{APPS}/deployments/a", {}, DELETE, JSON),
    "status": (lambda c: c.patch_status("ns", "a", "u", {"b": 1}, "us/a"), "PATCH", f"{OWN}/status",
               {"fieldManager": "us/a"}, OF_STATUS, MERGE),
    "annotation": (lambda c: c.annotate_pod(LIVE, {"a": "b"}), "PATCH", f"{CORE}/pods/a/status", MERGED, OF_POD, MERGE),
    "scale": (lambda c: c.patch_scale("ns", "a", 3), "PATCH", f"{OWN}/scale", MERGED, {"spec": {"replicas": 3}}, MERGE),
    "scale of a Deployment": (lambda c: c.patch_workload_scale(DEPLOYMENTS, "ns", "a", "u", 2), "PATCH",
                              f"{APPS}/deployments/a/scale", MERGED, OF_SCALE, MERGE),
}  # fmt: skip


UPDATE_LEASE = (lambda c: c.update_lease(LEASE, LONG), "PUT", f"{LEASES}/l", {}, LEASE, JSON)


@pytest.mark.parametrize("row", [*WRITES.values(), UPDATE_LEASE], ids=[*WRITES, "lease"])
def test_a_write_sends_what_the_api_server_expects(row):
    write, *expected = row
    server = Server()
    server.run(write)
    ((method, path, query, body, headers),) = server.seen
    assert [method, path, query, body, headers["Content-Type"]] == expected
    assert "Content-Length" in headers
    expected_headers = (FIELD_MANAGER, "application/json", "Bearer t1")
    assert (headers["User-Agent"], headers["Accept"], headers["Authorization"]) == expected_headers
    assert "uid" not in CONFIG["metadata"]


def test_a_delete_accepts_that_the_object_is_gone_or_replaced_and_no_other_error():
    for answer in (error(404, "NotFound", "gone"), error(409, "Conflict", "uid")):
        Server(answer).run(lambda client: client.delete(PODS, "ns", "a", "u"))
    Server(error(403, "Forbidden", "forbidden")).raises(lambda c: c.delete(PODS, "ns", "a", "u"), "forbidden")


RESOURCES = {"resources": [{"name": "diffusionlmservices/status"}, {"name": "diffusionlmservices"}]}


@pytest.mark.parametrize(
    ("groups", "resources", "there"),
    [
        (["apps", "serving.unmask.dev"], RESOURCES, True),
        (["apps"], RESOURCES, False),
        (["serving.unmask.dev"], {"resources": [{"name": "others"}]}, False),
    ],
)
def test_discovery_shows_a_kind_by_its_group_and_in_its_group(groups, resources, there):
    server = Server((200, {"groups": [{"name": name} for name in groups]}, {}), (200, resources, {}))
    assert server.run(lambda client: client.discovers(DLMS)) is there
    assert [path for _, path, *_ in server.seen] == ["/apis", "/apis/serving.unmask.dev/v1alpha1"][: len(server.seen)]


def page(*names, then=""):
    more = {"continue": then} if then else {}
    return 200, {"metadata": {"resourceVersion": "7", **more}, "items": [{"metadata": {"name": n}} for n in names]}, {}


EXPIRED = error(410, "Expired", "the provided continue parameter is too old")


def tokens(server):
    return [query.get("continue") for _, _, query, _, _ in server.seen]


def test_a_list_is_read_page_by_page_and_each_page_is_slimmed():
    server, seen = Server(page("a", "b", then="t+1&%20"), page("c", then="t2"), page("d")), []

    def keep(item):
        seen.append((item["metadata"]["name"], len(server.seen)))
        return item if item["metadata"]["name"] == "a" else {"kept": item["metadata"]["name"]}

    items, version = server.run(lambda client: client.list(PODS, "ns", "l in (v, w)", "f=v", transform=keep))
    first = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}}
    assert (items, version) == ([first, *({"kept": name} for name in "bcd")], 7)
    assert seen == [("a", 1), ("b", 1), ("c", 2), ("d", 3)], "a page was not transformed before the next request"
    assert tokens(server) == [None, "t+1&%20", "t2"]
    for _, path, query, _, _ in server.seen:
        selected = {"labelSelector": "l in (v, w)", "fieldSelector": "f=v", "limit": str(PAGE)}
        assert (path, query) == (f"{CORE}/pods", {**query, **selected})


def test_a_list_of_the_cluster_has_no_namespace_and_may_be_empty():
    server = Server((200, {"metadata": {"resourceVersion": "7"}, "items": None}, {}))
    assert server.run(lambda client: client.list(DLMS)) == ([], 7)
    assert server.seen[0][1:3] == ("/apis/serving.unmask.dev/v1alpha1/diffusionlmservices", {"limit": str(PAGE)})


def test_a_list_that_expires_halfway_restarts_without_duplicates_a_few_times():
    server = Server(page("a", then="old"), EXPIRED, page("a", "b", then="new"), page("c"))
    items, _ = server.run(lambda client: client.list(PODS))
    assert [item["metadata"]["name"] for item in items] == ["a", "b", "c"]
    assert tokens(server) == [None, "old", None, "new"]
    server = Server(*[page("a", then="t"), EXPIRED] * LIST_TRIES)
    server.raises(lambda client: client.list(PODS), "too old")
    assert len(server.seen) == 2 * LIST_TRIES


APPLIED = {**OURS, "operation": "Apply"}


@pytest.mark.parametrize(
    ("entries", "change"),
    [
        ([{**OURS, "manager": "kubectl"}, {**OURS, "subresource": "status"}, OURS],
         {"op": "replace", "path": "/metadata/managedFields/2/operation", "value": "Apply"}),
        ([APPLIED, OURS], {"op": "remove", "path": "/metadata/managedFields/1"}),
        ([APPLIED], None),
    ],
    ids=["of a create", "of a create and an apply", "of an apply"],
)  # fmt: skip
def test_only_managed_fields_of_a_create_become_those_of_apply(entries, change):
    live, server = with_meta(LIVE, managedFields=entries), Server()
    result = server.run(lambda client: client.upgrade_managed_fields(live))
    assert [seen[3][-1] for seen in server.seen] == ([change] if change else [])
    assert change or result is live


@pytest.mark.parametrize(
    ("message", "conflict"),
    [
        ("the server rejected our request due to an error in our request", True),  # a test of the JSON patch failed
        ('admission webhook "w" denied the request: no', False),
        ('Deployment.apps "d" is invalid: spec.template: Invalid value', False),
    ],
)
def test_only_a_failed_test_of_the_json_patch_is_a_conflict(message, conflict):
    found = Server(error(422, "Invalid", message)).raises(lambda client: client.upgrade_managed_fields(CREATED))
    assert (found.conflict, found.refusal) == (conflict, not conflict)


THROTTLED = error(429, "TooManyRequests", "later", {"Retry-After": "0.05"})


@pytest.mark.parametrize(
    ("answers", "result"),
    [
        ([THROTTLED, THROTTLED, (200, {"ok": True}, {})], {"ok": True}),
        ([THROTTLED] * 4, 429),
        ([error(429, "TooManyRequests", "later", retryAfterSeconds=120)], 429),  # left to the caller
        ([error(500, "InternalError", "etcd")], 500),
        ([error(400, "BadRequest", "no")], 400),
        ([error(401, "Unauthorized", "who")], 401),  # the token has not changed
    ],
)
def test_only_a_request_that_may_succeed_soon_is_repeated(answers, result):
    server = Server(*answers)
    if isinstance(result, dict):
        assert server.run(get_pod) == result
    else:
        found = server.raises(get_pod)
        assert found.status == result
        assert found.retry_after in (None, 0.05, 120)
    assert len(server.seen) == len(answers)


def test_a_rotated_token_is_read_again():
    server = Server(error(401, "Unauthorized", "who"), (200, {}, {}))
    server.run(get_pod, renewed="t2")
    assert [seen[4]["Authorization"] for seen in server.seen] == ["Bearer t1", "Bearer t2"]


def test_only_the_lease_is_written_while_another_pod_may_lead():
    write = WRITES["create"][0]
    server = Server((200, {"metadata": {}}, {}), (200, {}, {}))

    async def scene(client):
        client.may_write = lambda: False
        with pytest.raises(ApiError, match="another pod may lead") as withheld:
            await write(client)
        assert (withheld.value.status, withheld.value.reason, withheld.value.general) == (0, "NotLeading", True)
        await get_pod(client)
        await client.update_lease(LEASE, timeout=LONG)
        with pytest.raises(ApiError, match="another pod may lead"):
            await write(client)  # on an open connection
        client.may_write = lambda: True
        await write(client)

    server.run(scene)
    assert [seen[0] for seen in server.seen[:2]] == ["GET", "PUT"]
    assert len(server.seen) == 3


@pytest.mark.parametrize("open_already", [False, True], ids=["new connection", "open connection"])
@pytest.mark.parametrize("write", [write for write, *_ in WRITES.values()], ids=WRITES)
def test_a_write_is_sent_in_the_very_step_of_the_event_loop_that_allowed_it(write, open_already):
    """Checks this because another pod may lead after the process was frozen between the check and the write."""
    arrived = []

    async def scene(listener):
        loop, connections = asyncio.get_running_loop(), []

        def reply():
            if not connections:
                connections.append(listener.accept()[0])
            arrived.append(connections[0].recv(65536, socket.MSG_DONTWAIT))
            connections[0].sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

        def may_write():
            loop.call_soon(reply)  # in the next iteration of the event loop
            return True

        async with client_at(f"http://127.0.0.1:{listener.getsockname()[1]}") as client:
            client.may_write = may_write
            for _ in range(1 + open_already):
                await write(client)
        connections[0].close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        asyncio.run(scene(listener))
    assert len(arrived) == 1 + open_already
    for request in arrived:
        head, _, body = request.partition(b"\r\n\r\n")
        assert f"content-length: {len(body)}\r\n".encode() in head.lower() + b"\r\n"
        assert yaml.safe_load(body)


def test_a_write_without_a_body_is_never_sent():
    server = Server()
    with pytest.raises(AssertionError):
        server.run(lambda client: client.request("DELETE", f"{CORE}/pods/p"))
    assert server.seen == []


# What the server sends before it closes the connection (None: it sends nothing, and keeps it open), and the error.
NO_ANSWERS = {
    "silence": (None, 0, "Unreachable", False),
    "a closed connection": (b"", 0, "Unreachable", False),
    "a part": (b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n{", 0, "Unreachable", False),
    "the text of a proxy": (b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\ngateway", 200, "Unreadable", True),
    "a server error": (b"HTTP/1.1 503 Away\r\nContent-Length: 2\r\n\r\nno", 503, "Unknown", False),
}


@pytest.mark.parametrize(("answer", "status", "reason", "answered"), NO_ANSWERS.values(), ids=NO_ANSWERS)
def test_what_is_no_answer_is_an_error_of_the_same_type(answer, status, reason, answered):
    async def serve(reader, writer):
        await reader.read(1)
        if answer is not None:
            writer.write(answer)
            writer.close()

    async def scene():
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with client_at(f"http://127.0.0.1:{port}") as client:
            with pytest.raises(ApiError) as found:
                await client.request("GET", "/version", timeout=0.1 if answer is None else LONG)
            assert (client.last_answer > 0.0) == answered
        server.close()
        return found.value

    found = asyncio.run(scene())
    assert (found.status, found.reason) == (status, reason)


def test_credentials_that_cannot_be_read_again_are_an_error_of_the_same_type():
    def scene(client):
        Path(os.environ["KUBECONFIG"]).write_text("{}")
        return get_pod(client)

    found = Server(error(401, "Unauthorized", "who")).raises(scene, "cannot be read")
    assert (found.status, found.reason, found.general) == (0, "NoLogin", True)


def test_a_ca_that_was_replaced_is_read_again(tmp_path):
    old, new = Authority("old"), Authority("new")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(*new.issue("server", hosts=["127.0.0.1"]).write(tmp_path, "server"))
    file, ca = tmp_path / "config", tmp_path / "ca.crt"
    ca.write_bytes(old.certificate)

    async def scene():
        async with http_server(Server((200, {"ok": True}, {})).handle, tls) as port:
            kubeconfig.write(file, f"https://127.0.0.1:{port}", b"", user="u", token="t")
            config = yaml.safe_load(file.read_text())
            config["clusters"][0]["cluster"]["certificate-authority"] = str(ca)
            file.write_text(yaml.safe_dump(config))
            async with client_of(file) as client:
                with pytest.raises(ApiError, match="certificate") as found:
                    await get_pod(client)
                assert found.value.reason == "Unreachable"
                ca.write_bytes(new.certificate)
                assert await get_pod(client) == {"ok": True}

    asyncio.run(scene())


def test_json_is_written_as_the_api_server_writes_it():
    assert encode({"b": [1, 0.5], "a": "<ä&>\u2028"}) == '{"a":"\\u003cä\\u0026\\u003e\\u2028","b":[1,0.5]}'

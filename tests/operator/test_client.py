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
from tests.operator.clients import client_of
from unmask_operator.kube.client import LIST_TRIES, PAGE, encode
from unmask_operator.kube.errors import ApiError, api_error
from unmask_operator.kube.kinds import DLMS, LEASES, PODS, kind_of
from unmask_operator.objects import FIELD_MANAGER

LONG = 600.0  # seconds; even a slow machine does not reach it
CONFIG = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "a", "namespace": "ns"}}


@contextlib.asynccontextmanager
async def client_at(url, token="t1", renewed="t1"):
    """Yields a client of a server. Its kubeconfig has a token, which is replaced after the first read."""
    with tempfile.TemporaryDirectory() as folder:
        file = kubeconfig.write(Path(folder) / "config", url, b"", user="u", token=token)
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

    def run(self, scene, token="t1", renewed="t1"):
        """Runs `scene(client)`. The second time the credentials are read, the token is `renewed`."""

        async def scenario():
            app = web.Application()
            app.router.add_route("*", "/{tail:.*}", self.handle)
            runner = web.AppRunner(app)
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            port = runner.addresses[0][1]

            try:
                async with client_at(f"http://127.0.0.1:{port}", token, renewed) as client:
                    return await scene(client)
            finally:
                await runner.cleanup()

        return asyncio.run(scenario())


def status(code, reason, message, **details):
    return {"kind": "Status", "code": code, "reason": reason, "message": message, "details": details}


def test_create_is_a_strict_post_with_the_field_manager():
    server = Server((201, CONFIG, {}))
    server.run(lambda client: client.create(CONFIG, dry_run=True))
    ((method, path, query, body, headers),) = server.seen
    assert (method, path) == ("POST", "/api/v1/namespaces/ns/serviceaccounts")
    assert query == {"fieldManager": FIELD_MANAGER, "fieldValidation": "Strict", "dryRun": "All"}
    assert body == CONFIG
    assert headers["Authorization"] == "Bearer t1"
    assert headers["Content-Type"] == "application/json"
    assert headers["Content-Length"] == str(len(json.dumps(CONFIG)))


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


def test_apply_names_the_uid_of_the_object():
    server = Server()
    server.run(lambda client: client.apply(CONFIG, "the-uid"))
    ((method, path, query, body, headers),) = server.seen
    assert (method, path) == ("PATCH", "/api/v1/namespaces/ns/serviceaccounts/a")
    assert query == {"fieldManager": FIELD_MANAGER, "fieldValidation": "Strict", "force": "true"}
    assert body["metadata"] == {"name": "a", "namespace": "ns", "uid": "the-uid"}
    assert headers["Content-Type"].split(";")[0] == "application/apply-patch+yaml"
    assert "uid" not in CONFIG["metadata"]


def test_delete_names_the_uid_and_accepts_a_missing_object():
    server = Server((404, status(404, "NotFound", "gone"), {}))
    server.run(lambda client: client.delete(kind_of("apps/v1", "Deployment"), "ns", "a", "u"))
    ((method, path, _, body, _),) = server.seen
    assert (method, path) == ("DELETE", "/apis/apps/v1/namespaces/ns/deployments/a")
    assert body == {"preconditions": {"uid": "u"}, "propagationPolicy": "Background"}


def test_delete_ignores_another_object_of_that_name():
    Server((409, status(409, "Conflict", "uid"), {})).run(lambda c: c.delete(PODS, "ns", "a", "u"))
    with pytest.raises(ApiError, match="forbidden"):
        Server((403, status(403, "Forbidden", "forbidden"), {})).run(lambda c: c.delete(PODS, "ns", "a", "u"))


def test_status_and_scale_are_merge_patches_of_their_subresources():
    server = Server()

    async def scene(client):
        await client.patch_status("ns", "a", "u", {"replicas": 1})
        await client.patch_scale("ns", "a", 3)

    server.run(scene)
    (first, second) = server.seen
    assert first[1].endswith("/namespaces/ns/diffusionlmservices/a/status")
    assert first[3] == {"metadata": {"uid": "u"}, "status": {"replicas": 1}}
    assert second[1].endswith("/namespaces/ns/diffusionlmservices/a/scale")
    assert second[3] == {"spec": {"replicas": 3}}
    assert {first[4]["Content-Type"], second[4]["Content-Type"]} == {"application/merge-patch+json"}


def test_lists_name_their_items():
    server = Server((200, {"metadata": {"resourceVersion": "7"}, "items": [{"metadata": {"name": "p"}}]}, {}))
    items, version = server.run(lambda client: client.list(PODS, "ns", "some=label"))
    assert (items, version) == ([{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}}], 7)
    assert server.seen[0][1:3] == ("/api/v1/namespaces/ns/pods", {"labelSelector": "some=label", "limit": str(PAGE)})


def page(*names, then=""):
    more = {"continue": then} if then else {}
    return 200, {"metadata": {"resourceVersion": "7", **more}, "items": [{"metadata": {"name": n}} for n in names]}, {}


EXPIRED = (410, status(410, "Expired", "the provided continue parameter is too old"), {})


def names(items):
    return [item["metadata"]["name"] for item in items]


def test_a_list_is_read_page_by_page_and_each_page_is_slimmed():
    server, seen = Server(page("a", "b", then="t1"), page("c", then="t2"), page("d")), []

    def keep(item):
        seen.append((item["metadata"]["name"], len(server.seen)))
        return {"kept": item["metadata"]["name"]}

    items, version = server.run(lambda client: client.list(PODS, None, "l=v", transform=keep))
    assert (items, version) == ([{"kept": name} for name in "abcd"], 7)
    assert seen == [("a", 1), ("b", 1), ("c", 2), ("d", 3)], (
        "a page was not transformed before the request of the next page"
    )
    assert [query.get("continue") for _, _, query, _, _ in server.seen] == [None, "t1", "t2"]
    assert {query["labelSelector"] for _, _, query, _, _ in server.seen} == {"l=v"}


def test_a_list_that_expires_halfway_restarts_without_duplicates():
    server = Server(page("a", then="old"), EXPIRED, page("a", "b", then="new"), page("c"))
    items, _ = server.run(lambda client: client.list(PODS))
    assert names(items) == ["a", "b", "c"]
    assert [query.get("continue") for _, _, query, _, _ in server.seen] == [None, "old", None, "new"]


def test_a_list_that_always_expires_is_an_error():
    server = Server(*[page("a", then="t"), EXPIRED] * LIST_TRIES)
    with pytest.raises(ApiError, match="too old"):
        server.run(lambda client: client.list(PODS))
    assert len(server.seen) == 2 * LIST_TRIES


def test_a_list_of_the_cluster_has_no_namespace():
    server = Server((200, {"metadata": {"resourceVersion": "7"}, "items": None}, {}))
    assert server.run(lambda client: client.list(DLMS)) == ([], 7)
    assert server.seen[0][1] == "/apis/serving.unmask.dev/v1alpha1/diffusionlmservices"


def test_only_managed_fields_of_a_create_become_those_of_apply():
    ours = {"manager": FIELD_MANAGER, "operation": "Update"}
    live = {**CONFIG, "metadata": {**CONFIG["metadata"], "uid": "u", "managedFields": [
        {"manager": "kubectl", "operation": "Update"}, {**ours, "subresource": "status"}, ours]}}  # fmt: skip
    server = Server()
    server.run(lambda client: client.upgrade_managed_fields(live))
    ((method, _, _, body, headers),) = server.seen
    assert method == "PATCH"
    assert headers["Content-Type"] == "application/json-patch+json"
    assert {"op": "replace", "path": "/metadata/managedFields/2/operation", "value": "Apply"} in body
    assert {"op": "test", "path": "/metadata/uid", "value": "u"} in body

    both = {**live, "metadata": {**live["metadata"], "managedFields": [{**ours, "operation": "Apply"}, ours]}}
    server = Server()
    server.run(lambda client: client.upgrade_managed_fields(both))
    assert server.seen[0][3][-1] == {"op": "remove", "path": "/metadata/managedFields/1"}

    applied = {**live, "metadata": {**live["metadata"], "managedFields": [{**ours, "operation": "Apply"}]}}
    quiet = Server()
    assert quiet.run(lambda client: client.upgrade_managed_fields(applied)) is applied
    assert quiet.seen == []


@pytest.mark.parametrize(
    ("message", "conflict"),
    [
        ("the server rejected our request due to an error in our request", True),  # a test of the JSON patch failed
        (
            "deployments.apps \"d\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no",
            False,
        ),
        ('admission webhook "w" denied the request: no', False),
        ('Deployment.apps "d" is invalid: spec.template: Invalid value', False),
    ],
)
def test_only_a_failed_test_of_the_json_patch_is_a_conflict(message, conflict):
    status = {"kind": "Status", "reason": "Invalid", "message": message}
    entry = {"manager": FIELD_MANAGER, "operation": "Update"}
    live = {**CONFIG, "metadata": {**CONFIG["metadata"], "uid": "u", "managedFields": [entry]}}

    async def scene(client):
        with pytest.raises(ApiError) as caught:
            await client.upgrade_managed_fields(live)
        assert caught.value.conflict == conflict
        assert caught.value.refusal != conflict

    Server((422, status, {})).run(scene)


def test_a_put_of_the_lease_contains_its_version():
    server = Server()
    lease = {"metadata": {"name": "l", "namespace": "n", "resourceVersion": "5"}, "spec": {}}
    server.run(lambda client: client.update_lease(lease, LONG))
    assert server.seen[0][:2] == ("PUT", "/apis/coordination.k8s.io/v1/namespaces/n/leases/l")
    assert server.seen[0][3] == lease


def test_a_throttled_request_is_retried_after_its_retry_after():
    slow = (429, status(429, "TooManyRequests", "later"), {"Retry-After": "0.05"})
    server = Server(slow, slow, (200, {"ok": True}, {}))
    assert server.run(lambda client: client.get(PODS, "ns", "p")) == {"ok": True}
    assert len(server.seen) == 3


def test_a_long_retry_after_is_left_to_the_caller():
    server = Server((429, status(429, "TooManyRequests", "later", retryAfterSeconds=120), {}))
    with pytest.raises(ApiError) as caught:
        server.run(lambda client: client.get(PODS, "ns", "p"))
    assert (caught.value.status, caught.value.retry_after) == (429, 120)
    assert len(server.seen) == 1


def test_a_server_error_is_not_retried():
    server = Server((500, status(500, "InternalError", "etcd"), {}))
    with pytest.raises(ApiError, match="etcd"):
        server.run(lambda client: client.create(CONFIG))
    assert len(server.seen) == 1


def test_a_rotated_token_is_read_again():
    server = Server((401, status(401, "Unauthorized", "who"), {}), (200, {}, {}))
    server.run(lambda client: client.get(PODS, "ns", "p"), renewed="t2")
    assert [seen[4]["Authorization"] for seen in server.seen] == ["Bearer t1", "Bearer t2"]


def test_an_unchanged_token_is_not_tried_twice():
    server = Server((401, status(401, "Unauthorized", "who"), {}))
    with pytest.raises(ApiError, match="who"):
        server.run(lambda client: client.get(PODS, "ns", "p"))
    assert len(server.seen) == 1


LIVE = {**CONFIG, "metadata": {**CONFIG["metadata"], "uid": "u"}}
CREATED = {
    **LIVE,
    "metadata": {**LIVE["metadata"], "managedFields": [{"manager": FIELD_MANAGER, "operation": "Update"}]},
}
REVISION = {"apiVersion": "apps/v1", "kind": "ControllerRevision", "metadata": CONFIG["metadata"], "data": {"a": "<"}}
WRITES = {
    "create": lambda client: client.create(CONFIG),
    "create of a revision": lambda client: client.create(REVISION),
    "dry run": lambda client: client.create(CONFIG, dry_run=True),
    "apply": lambda client: client.apply(CONFIG, "u"),
    "JSON patch": lambda client: client.upgrade_managed_fields(CREATED),
    "delete": lambda client: client.delete(PODS, "ns", "p", "u"),
    "status": lambda client: client.patch_status("ns", "s", "u", {}),
    "annotation": lambda client: client.annotate_pod(LIVE, {"a": "b"}),
    "scale": lambda client: client.patch_scale("ns", "s", 2),
    "Deployment's scale": lambda client: client.patch_deployment_scale("ns", "s", "u", 2),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_only_the_lease_is_written_while_another_pod_may_lead(write):
    server = Server((200, {"metadata": {}}, {}), (200, {}, {}))

    async def scene(client):
        client.may_write = lambda: False
        with pytest.raises(ApiError, match="another pod may lead") as withheld:
            await write(client)
        assert (withheld.value.status, withheld.value.reason, withheld.value.general) == (0, "NotLeading", True)
        await client.get(PODS, "ns", "p")
        await client.update_lease({"metadata": {"namespace": "n", "name": "l"}}, timeout=LONG)
        with pytest.raises(ApiError, match="another pod may lead"):
            await write(client)  # on an open connection
        client.may_write = lambda: True
        await write(client)

    server.run(scene)
    assert [seen[0] for seen in server.seen[:2]] == ["GET", "PUT"]
    assert len(server.seen) == 3


@pytest.mark.parametrize("open_already", [False, True], ids=["new connection", "open connection"])
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_write_is_sent_in_the_very_step_of_the_event_loop_that_allowed_it(write, open_already):
    """Checks this because another pod may lead after the process was frozen between the check and the write."""
    arrived = []
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"

    async def scene(listener):
        loop = asyncio.get_running_loop()
        connections = []

        def reply():
            if not connections:
                connections.append(listener.accept()[0])
            arrived.append(connections[0].recv(65536, socket.MSG_DONTWAIT))
            connections[0].sendall(answer)

        def may_write():
            loop.call_soon(reply)  # in the next iteration of the event loop
            return True

        async with client_at(f"http://127.0.0.1:{listener.getsockname()[1]}") as client:
            client.may_write = may_write
            if open_already:
                await write(client)
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

    async def scene(client):
        for method in ("POST", "PUT", "PATCH", "DELETE"):
            with pytest.raises(AssertionError):
                await client.request(method, "/api/v1/namespaces/ns/pods/p")

    server.run(scene)
    assert server.seen == []


def test_a_request_names_the_operator_and_accepts_json():
    server = Server()
    server.run(lambda client: client.get(PODS, "ns", "p"))
    headers = server.seen[0][4]
    assert (headers["User-Agent"], headers["Accept"]) == (FIELD_MANAGER, "application/json")


def test_a_revision_is_sent_as_yaml_that_the_api_server_encodes_itself():
    server = Server()
    server.run(lambda client: client.create(REVISION))
    ((_, path, query, body, headers),) = server.seen
    assert path == "/apis/apps/v1/namespaces/ns/controllerrevisions"
    assert query["fieldValidation"] == "Strict"
    assert headers["Content-Type"] == "application/yaml"
    assert headers["Content-Length"] == str(len(encode(REVISION).encode()))
    assert body == REVISION


@pytest.mark.parametrize("text", ["a=b,c in (d, e)", "a!=b&c+d%20", "ä/ö", "x" * 2000 + "=="])
def test_a_parameter_arrives_unchanged(text):
    server = Server(page("a", then=text), page("b"))
    server.run(lambda client: client.list(PODS, "ns", text, fields=text))
    (_, _, first, _, _), (_, _, second, _, _) = server.seen
    assert (first["labelSelector"], first["fieldSelector"], second["continue"]) == (text, text, text)


def test_an_answer_that_does_not_arrive_in_time_is_an_error_and_the_next_request_is_sent():
    class Slow(Server):
        async def handle(self, request):
            if not self.seen:
                self.seen.append(request.path)
                await ended.wait()
            return await super().handle(request)

    ended = asyncio.Event()

    async def scene(client):
        with pytest.raises(ApiError, match="no answer from the API server") as timeout:
            await client.request("GET", "/version", timeout=0.1)
        assert (timeout.value.status, timeout.value.reason) == (0, "Unreachable")
        assert client.last_answer == 0.0
        await client.get(PODS, "ns", "p")
        assert client.last_answer > 0.0
        ended.set()

    Slow().run(scene)


def test_an_answer_that_breaks_off_or_is_no_json_is_an_error():
    def serve(listener, answer):
        connection, _ = listener.accept()
        connection.recv(65536)
        connection.sendall(answer)
        connection.close()

    async def scene(listener, answer):
        async with client_at(f"http://127.0.0.1:{listener.getsockname()[1]}") as client:
            with pytest.raises(ApiError) as error:
                await asyncio.gather(asyncio.to_thread(serve, listener, answer), client.get(PODS, "ns", "p"))
            return error.value

    half = b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n{"
    page_of_a_proxy = b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\ngateway"
    for answer, reason in ((half, "Unreachable"), (page_of_a_proxy, "Unreadable")):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            assert asyncio.run(scene(listener, answer)).reason == reason


def test_a_server_error_does_not_count_as_an_answer():
    async def scene(client):
        with pytest.raises(ApiError):
            await client.get(PODS, "ns", "p")
        assert client.last_answer == 0.0

    Server((503, status(503, "ServiceUnavailable", "no"), {})).run(scene)


def test_credentials_that_cannot_be_read_again_are_an_error_of_the_same_type():
    async def scene(client):
        Path(os.environ["KUBECONFIG"]).write_text("{}")
        with pytest.raises(ApiError, match="cannot be read") as error:
            await client.get(PODS, "ns", "p")
        assert (error.value.status, error.value.reason, error.value.general) == (0, "NoLogin", True)

    Server((401, status(401, "Unauthorized", "who"), {})).run(scene)


def test_a_ca_that_was_replaced_is_read_again(tmp_path):
    """Checks that the CA is read again if the server's certificate does not match the one in use."""
    old, new = Authority("old"), Authority("new")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(*new.issue("server", hosts=["127.0.0.1"]).write(tmp_path, "server"))
    ca = tmp_path / "ca.crt"
    ca.write_bytes(old.certificate)

    async def answer(request):
        return web.json_response({"ok": True})

    async def scene():
        app = web.Application()
        app.router.add_get("/{tail:.*}", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
        file = tmp_path / "config"
        cluster = {"server": f"https://127.0.0.1:{runner.addresses[0][1]}", "certificate-authority": str(ca)}
        file.write_text(yaml.safe_dump({
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": {"token": "t"}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }))  # fmt: skip
        async with client_of(file) as client:
            with pytest.raises(ApiError, match="certificate") as error:
                await client.get(PODS, "ns", "p")
            assert error.value.reason == "Unreachable"
            ca.write_bytes(new.certificate)
            assert await client.get(PODS, "ns", "p") == {"ok": True}
        await runner.cleanup()

    asyncio.run(scene())


def test_no_answer_is_an_error_of_the_same_type():
    client_error = None

    async def scene():
        nonlocal client_error
        async with client_at("http://127.0.0.1:1") as client:
            try:
                await client.get(LEASES, "n", "l")
            except ApiError as error:
                client_error = error
            return client.last_answer

    assert asyncio.run(scene()) == 0.0
    assert (client_error.status, client_error.reason) == (0, "Unreachable")


def test_an_error_contains_the_servers_message_or_a_proxys_text():
    conflict = api_error(409, json.dumps(status(409, "AlreadyExists", 'services "a" already exists')).encode(), {})
    assert conflict.exists
    assert not conflict.conflict
    assert str(conflict) == 'services "a" already exists (409 AlreadyExists)'
    gateway_error = api_error(502, b"bad gateway\n", {"Retry-After": "3"})
    assert (gateway_error.message, gateway_error.retry_after, gateway_error.refusal) == ("bad gateway", 3.0, False)
    assert api_error(422, b"{}", {}).refusal


def test_json_is_written_as_the_api_server_writes_it():
    assert encode({"b": [1, 0.5], "a": "<ä&>\u2028"}) == '{"a":"\\u003cä\\u0026\\u003e\\u2028","b":[1,0.5]}'

"""The client against a small HTTP server: what it asks, what it makes of answers, what it sends again."""

import asyncio
import json
import socket

import pytest
from aiohttp import web

from unmask_operator.client.client import LIST_TRIES, PAGE, Client
from unmask_operator.client.errors import ApiError, api_error
from unmask_operator.client.kinds import LEASES, PODS, SERVICES, kind_of
from unmask_operator.client.login import Login
from unmask_operator.client.session import encode
from unmask_operator.objects import FIELD_MANAGER

LONG = 600.0  # seconds: no limit that a slow machine reaches
CONFIG = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "a", "namespace": "ns"}}


class Server:
    """Records requests and answers from a list of (status, body, headers); the last one stays."""

    def __init__(self, *answers):
        self.answers = list(answers) or [(200, {}, {})]
        self.seen = []

    async def handle(self, request):
        body = await request.read()
        self.seen.append(
            (request.method, request.path, dict(request.query), json.loads(body or b"null"), request.headers)
        )
        status, answer, headers = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        text = answer if isinstance(answer, str) else json.dumps(answer)
        return web.Response(status=status, text=text, headers=headers, content_type="application/json")

    def run(self, scene, token="t1", renewed="t1"):
        """Run `scene(client)`; the second reading of the login gives the token `renewed`."""
        tokens = [token]

        async def whole():
            app = web.Application()
            app.router.add_route("*", "/{tail:.*}", self.handle)
            runner = web.AppRunner(app)
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            port = runner.addresses[0][1]

            def login():
                info = Login(server=f"http://127.0.0.1:{port}", token=tokens[0])
                tokens[0] = renewed
                return info

            client = Client(login)
            try:
                return await scene(client)
            finally:
                await client.close()
                await runner.cleanup()

        return asyncio.run(whole())


def status(code, reason, message, **details):
    return {"kind": "Status", "code": code, "reason": reason, "message": message, "details": details}


def test_create_is_a_strict_post_under_our_name():
    server = Server((201, CONFIG, {}))
    server.run(lambda client: client.create(CONFIG, dry_run=True))
    ((method, path, query, body, headers),) = server.seen
    assert (method, path) == ("POST", "/api/v1/namespaces/ns/serviceaccounts")
    assert query == {"fieldManager": FIELD_MANAGER, "fieldValidation": "Strict", "dryRun": "All"}
    assert body == CONFIG
    assert headers["Authorization"] == "Bearer t1"
    assert headers["Content-Length"] == str(len(encode(CONFIG)))


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
    assert server.run(lambda client: client.discovers(SERVICES)) is there
    assert [path for _, path, *_ in server.seen] == ["/apis", "/apis/serving.unmask.dev/v1alpha1"][: len(server.seen)]


def test_apply_says_whose_object_it_means():
    server = Server()
    server.run(lambda client: client.apply(CONFIG, "the-uid"))
    ((method, path, query, body, headers),) = server.seen
    assert (method, path) == ("PATCH", "/api/v1/namespaces/ns/serviceaccounts/a")
    assert query == {"fieldManager": FIELD_MANAGER, "fieldValidation": "Strict", "force": "true"}
    assert body["metadata"] == {"name": "a", "namespace": "ns", "uid": "the-uid"}
    assert headers["Content-Type"] == "application/apply-patch+yaml"
    assert "uid" not in CONFIG["metadata"]


def test_delete_names_the_uid_and_accepts_what_is_gone():
    server = Server((404, status(404, "NotFound", "gone"), {}))
    server.run(lambda client: client.delete(kind_of("apps/v1", "Deployment"), "ns", "a", "u"))
    ((method, path, _, body, _),) = server.seen
    assert (method, path) == ("DELETE", "/apis/apps/v1/namespaces/ns/deployments/a")
    assert body == {"preconditions": {"uid": "u"}, "propagationPolicy": "Background"}


def test_delete_leaves_another_object_of_that_name_alone():
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


def test_a_list_comes_page_by_page_and_of_each_only_what_is_kept():
    server, seen = Server(page("a", "b", then="t1"), page("c", then="t2"), page("d")), []

    def keep(item):
        seen.append((item["metadata"]["name"], len(server.seen)))
        return {"kept": item["metadata"]["name"]}

    items, version = server.run(lambda client: client.list(PODS, None, "l=v", keep=keep))
    assert (items, version) == ([{"kept": name} for name in "abcd"], 7)
    assert seen == [("a", 1), ("b", 1), ("c", 2), ("d", 3)], "each page is let go before the next one is asked for"
    assert [query.get("continue") for _, _, query, _, _ in server.seen] == [None, "t1", "t2"]
    assert {query["labelSelector"] for _, _, query, _, _ in server.seen} == {"l=v"}


def test_a_list_that_expires_half_way_is_begun_anew_and_has_nothing_twice():
    server = Server(page("a", then="old"), EXPIRED, page("a", "b", then="new"), page("c"))
    items, _ = server.run(lambda client: client.list(PODS))
    assert names(items) == ["a", "b", "c"]
    assert [query.get("continue") for _, _, query, _, _ in server.seen] == [None, "old", None, "new"]


def test_a_list_that_always_expires_ends():
    server = Server(*[page("a", then="t"), EXPIRED] * LIST_TRIES)
    with pytest.raises(ApiError, match="too old"):
        server.run(lambda client: client.list(PODS))
    assert len(server.seen) == 2 * LIST_TRIES


def test_a_list_of_the_cluster_has_no_namespace():
    server = Server((200, {"metadata": {"resourceVersion": "7"}, "items": None}, {}))
    assert server.run(lambda client: client.list(SERVICES)) == ([], 7)
    assert server.seen[0][1] == "/apis/serving.unmask.dev/v1alpha1/diffusionlmservices"


def test_what_a_post_left_becomes_an_applys_and_nothing_else_does():
    ours = {"manager": FIELD_MANAGER, "operation": "Update"}
    live = {**CONFIG, "metadata": {**CONFIG["metadata"], "uid": "u", "managedFields": [
        {"manager": "kubectl", "operation": "Update"}, {**ours, "subresource": "status"}, ours]}}  # fmt: skip
    server = Server()
    server.run(lambda client: client.own_created_fields(live))
    ((method, _, _, body, headers),) = server.seen
    assert method == "PATCH"
    assert headers["Content-Type"] == "application/json-patch+json"
    assert {"op": "replace", "path": "/metadata/managedFields/2/operation", "value": "Apply"} in body
    assert {"op": "test", "path": "/metadata/uid", "value": "u"} in body

    both = {**live, "metadata": {**live["metadata"], "managedFields": [{**ours, "operation": "Apply"}, ours]}}
    server = Server()
    server.run(lambda client: client.own_created_fields(both))
    assert server.seen[0][3][-1] == {"op": "remove", "path": "/metadata/managedFields/1"}

    applied = {**live, "metadata": {**live["metadata"], "managedFields": [{**ours, "operation": "Apply"}]}}
    quiet = Server()
    assert quiet.run(lambda client: client.own_created_fields(applied)) is applied
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
def test_a_refusal_of_what_a_post_left_is_no_conflict(message, conflict):
    status = {"kind": "Status", "reason": "Invalid", "message": message}
    entry = {"manager": FIELD_MANAGER, "operation": "Update"}
    live = {**CONFIG, "metadata": {**CONFIG["metadata"], "uid": "u", "managedFields": [entry]}}

    async def scene(client):
        with pytest.raises(ApiError) as caught:
            await client.own_created_fields(live)
        assert caught.value.conflict == conflict
        assert caught.value.refusal != conflict

    Server((422, status, {})).run(scene)


def test_a_put_of_the_lease_carries_its_version():
    server = Server()
    lease = {"metadata": {"name": "l", "namespace": "n", "resourceVersion": "5"}, "spec": {}}
    server.run(lambda client: client.update_lease(lease, LONG))
    assert server.seen[0][:2] == ("PUT", "/apis/coordination.k8s.io/v1/namespaces/n/leases/l")
    assert server.seen[0][3] == lease


def test_a_throttled_request_waits_as_told_and_goes_again():
    slow = (429, status(429, "TooManyRequests", "later"), {"Retry-After": "0.05"})
    server = Server(slow, slow, (200, {"ok": True}, {}))
    assert server.run(lambda client: client.get(PODS, "ns", "p")) == {"ok": True}
    assert len(server.seen) == 3


def test_a_long_wait_is_the_callers():
    server = Server((429, status(429, "TooManyRequests", "later", retryAfterSeconds=120), {}))
    with pytest.raises(ApiError) as caught:
        server.run(lambda client: client.get(PODS, "ns", "p"))
    assert (caught.value.status, caught.value.retry_after) == (429, 120)
    assert len(server.seen) == 1


def test_a_server_error_is_not_repeated_here():
    server = Server((500, status(500, "InternalError", "etcd"), {}))
    with pytest.raises(ApiError, match="etcd"):
        server.run(lambda client: client.create(CONFIG))
    assert len(server.seen) == 1


def test_a_rotated_token_is_read_again():
    server = Server((401, status(401, "Unauthorized", "who"), {}), (200, {}, {}))
    server.run(lambda client: client.get(PODS, "ns", "p"), renewed="t2")
    assert [seen[4]["Authorization"] for seen in server.seen] == ["Bearer t1", "Bearer t2"]


def test_a_token_that_did_not_change_is_not_tried_twice():
    server = Server((401, status(401, "Unauthorized", "who"), {}))
    with pytest.raises(ApiError, match="who"):
        server.run(lambda client: client.get(PODS, "ns", "p"))
    assert len(server.seen) == 1


def test_nothing_but_the_lease_is_written_where_another_may_lead():
    server = Server((200, {"metadata": {}}, {}), (200, {}, {}))

    async def scene(client):
        client.may_write = lambda: False
        for write in (client.delete(PODS, "ns", "p", "u"), client.patch_scale("ns", "s", 2)):
            with pytest.raises(ApiError, match="another pod may lead"):
                await write
        await client.get(PODS, "ns", "p")
        await client.update_lease({"metadata": {"namespace": "n", "name": "l"}}, timeout=LONG)

    server.run(scene)
    assert [seen[0] for seen in server.seen] == ["GET", "PUT"]


def test_a_write_is_sent_in_the_very_turn_of_the_event_loop_that_allowed_it():
    """Where a process is frozen between the two, another may lead when it goes on."""
    arrived = []

    async def scene(listener):
        loop = asyncio.get_running_loop()
        client = Client(lambda: Login(server=f"http://127.0.0.1:{listener.getsockname()[1]}"))

        def answer():
            connection, _ = listener.accept()
            arrived.append(connection.recv(65536, socket.MSG_DONTWAIT))
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
            connection.close()

        def may_write():
            loop.call_soon(answer)  # in the next turn
            return True

        client.may_write = may_write
        await client.patch_scale("ns", "s", 2)
        await client.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        asyncio.run(scene(listener))
    (request,) = arrived
    assert request.endswith(b'{"spec":{"replicas":2}}')


def test_no_answer_is_an_error_of_the_same_type():
    client_error = None

    async def scene():
        nonlocal client_error
        client = Client(lambda: Login(server="http://127.0.0.1:1"))
        try:
            await client.get(LEASES, "n", "l")
        except ApiError as error:
            client_error = error
        await client.close()
        return client.last_answer

    assert asyncio.run(scene()) == 0.0
    assert (client_error.status, client_error.reason) == (0, "Unreachable")


def test_an_error_carries_the_servers_sentence_or_a_proxys_text():
    said = api_error(409, json.dumps(status(409, "AlreadyExists", 'services "a" already exists')).encode(), {})
    assert said.exists
    assert not said.conflict
    assert str(said) == 'services "a" already exists (409 AlreadyExists)'
    plain = api_error(502, b"bad gateway\n", {"Retry-After": "3"})
    assert (plain.message, plain.retry_after, plain.refusal) == ("bad gateway", 3.0, False)
    assert api_error(422, b"{}", {}).refusal


def test_json_is_written_as_the_api_server_writes_it():
    assert encode({"b": [1, 0.5], "a": "<ä&>\u2028"}) == '{"a":"\\u003cä\\u0026\\u003e\\u2028","b":[1,0.5]}'.encode()

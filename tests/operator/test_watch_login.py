"""Tests of the session that kopf's watches use, with a small HTTP server."""

import asyncio
import itertools
import ssl
import time

import aiohttp
import pytest
from aiohttp import web

from e2e.cluster.pki import Authority
from tests.operator.clients import ScriptedCredentials, http_server
from tests.simulated_time import now, simulated
from unmask_operator.kube import watch_login
from unmask_operator.kube.watch_login import LONGEST_PAUSE_SECONDS, WatchLogin


def logins(*tokens, server="http://127.0.0.1:1", clock=now):
    """Returns a WatchLogin that uses these tokens, and the lists `lists` and `errors` of its reports.

    The last token is used repeatedly.
    """
    lists, errors = [], []
    login = WatchLogin(ScriptedCredentials(server, *tokens), "agent/1", lists.append, errors.append, clock)
    return login, lists, errors


@pytest.mark.parametrize(
    ("tokens", "pauses"),
    [(("t1", "t2", "t3", "t4"), [0, 0, 0]), (("t1",), [1, 2, 4, 8, 16, 30, 30])],
    ids=["new credentials", "refused credentials"],
)
@simulated
async def test_logins_with_refused_credentials_wait_longer_each_time(tokens, pauses):
    login, *_ = logins(*tokens)
    at = []
    for _ in range(len(pauses) + 1):
        server, session = await login.open()
        await session.close()
        assert server == "http://127.0.0.1:1"
        at.append(round(now()))
    assert at[0] == 0
    assert [later - earlier for earlier, later in itertools.pairwise(at)] == pauses


@simulated
async def test_credentials_that_change_during_a_pause_are_used():
    login, *_ = logins("t1", "t1", "t2")
    for token in ("t1", "t2"):
        _, session = await login.open()
        assert login.credentials.current.authorization == f"Bearer {token}"
        await session.close()
    assert now() == 1


@simulated
async def test_an_old_refusal_does_not_delay_a_login():
    assert LONGEST_PAUSE_SECONDS < watch_login.FORGET_SECONDS
    login, *_ = logins("t1")
    for number in range(4):
        _, session = await login.open()
        await session.close()
        assert now() == number * watch_login.FORGET_SECONDS
        await asyncio.sleep(watch_login.FORGET_SECONDS)


def serve(act, *, prefix="", tls=None, ca=None, **configuration):
    """Runs `act(session, url)` after a login at a server. A number that ends a path is the status of the answer.

    Other arguments are attributes of the client's configuration; "URL" means that of the server.
    """

    async def handle(request):
        last = request.path.rpartition("/")[2]
        seen = {"agent": request.headers["User-Agent"], "token": request.headers["Authorization"]}
        return web.json_response(seen, status=int(last) if last.isdigit() else 200)

    async def scene():
        async with http_server(handle, tls) as port:
            url = f"{'https' if tls else 'http'}://127.0.0.1:{port}{prefix}"
            login, lists, errors = logins("t1", server=url, clock=time.monotonic)
            login.credentials.configuration.ca_cert_data = ca.certificate.decode() if ca else None
            for name, value in configuration.items():
                setattr(login.credentials.configuration, name, url if value == "URL" else value)
            server, session = await login.open()
            assert server == url
            async with session:
                await act(session, url)
            return lists, errors

    return asyncio.run(scene())


@pytest.mark.parametrize("prefix", ["", "/k8s/clusters/c-1"])
def test_lists_are_reported_by_their_path_and_refused_requests_by_their_status(prefix):
    async def act(session, url):
        for path in ("/api/v1/pods?limit=100", "/api/v1/pods?watch=true", "/apis/apps/v1/deployments?limit=1"):
            async with session.get(url + path) as answer:
                assert await answer.json() == {"agent": "agent/1", "token": "Bearer t1"}
        for path in ("/400?limit=1", "/503?watch=true"):
            async with session.get(url + path):
                pass

    assert serve(act, prefix=prefix) == (["/api/v1/pods", "/apis/apps/v1/deployments"], [400, 503])


def test_a_request_without_an_answer_is_reported_and_one_that_is_cancelled_is_not():
    async def act(session, url):
        with pytest.raises(OSError):  # noqa: PT011
            await session.get("http://127.0.0.1:1/")
        task = asyncio.create_task(session.get(f"{url}/slow"))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    assert serve(act) == ([], [0])


async def refused(session, url):
    with pytest.raises(aiohttp.ClientSSLError):
        await session.get(url)
    assert session.closed  # kopf then logs in again, which reads the CA again


async def accepted(session, url):
    async with session.get(url):
        assert not session.closed


@pytest.mark.parametrize(
    ("host", "trusted", "name", "act"),
    [
        ("127.0.0.1", False, None, refused), ("127.0.0.1", True, None, accepted),
        ("api.example.com", True, None, refused), ("api.example.com", True, "api.example.com", accepted),
    ],
)  # fmt: skip
def test_a_certificate_of_an_untrusted_ca_or_for_another_name_closes_the_session(tmp_path, host, trusted, name, act):
    authority = Authority("ca")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(*authority.issue("server", hosts=[host]).write(tmp_path, "server"))
    errors = serve(act, tls=tls, ca=authority if trusted else Authority("another"), tls_server_name=name)[1]
    assert errors == ([0] if act is refused else [])


def test_a_request_has_the_current_token_which_is_refreshed_before_it(monkeypatch):
    async def refresh(self):
        self.tokens[:] = [self.current.authorization.removeprefix("Bearer ") + "+"]
        await self.load()

    monkeypatch.setattr(ScriptedCredentials, "refresh", refresh)

    async def act(session, url):
        for token in ("t1+", "t1++"):
            async with session.get(url) as answer:
                assert (await answer.json())["token"] == f"Bearer {token}"

    serve(act)


def test_a_proxy_of_a_kubeconfig_is_used():
    async def act(session, url):
        async with session.get("http://api.example.com/api/v1/pods?limit=1") as answer:
            assert (await answer.json())["agent"] == "agent/1"

    assert serve(act, proxy="URL") == (["/api/v1/pods"], [])

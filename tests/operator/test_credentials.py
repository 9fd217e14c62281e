"""Tests of the operator's credentials: the service account's files in a pod, or a kubeconfig with any login method."""

import asyncio
import base64
import contextlib
import json
import stat
import sys
from datetime import UTC, datetime, timedelta

import psutil
import pytest
import yaml
from kubernetes.aio.client.rest import RESTClientObject
from kubernetes.aio.config import incluster_config

from e2e.cluster.pki import Authority
from tests.wait import wait_until_async
from unmask_operator.kube import credentials as module
from unmask_operator.kube.credentials import REFRESH_SECONDS, Credentials, LoginError

AUTHORITY = Authority("ca")
SERVER = "https://10.0.0.1:6443"


class Clock:
    """A clock that `tick` advances until credentials are read again."""

    now = 0.0

    def __call__(self):
        return self.now

    def tick(self):
        self.now += REFRESH_SECONDS


def refreshed(found, clock):
    """Returns the header after the credentials were refreshed a minute later."""
    clock.tick()
    asyncio.run(found.refresh())
    return found.current.authorization


@pytest.fixture
def pod(tmp_path, monkeypatch):
    """Writes a service account's files and sets the environment as in a pod."""
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(tmp_path / "token"))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(tmp_path / "ca.crt"))
    (tmp_path / "token").write_text("one\n")
    (tmp_path / "ca.crt").write_bytes(AUTHORITY.certificate)
    return tmp_path


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Returns a function that writes a kubeconfig with this user and sets KUBECONFIG to its path."""

    def write(user, server=SERVER, **cluster):
        content = {
            "clusters": [{"name": "c", "cluster": {"server": f"{server}/", **cluster}}],
            "users": [{"name": "other", "user": {"token": "no"}}, {"name": "u", "user": user}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
        file = tmp_path / "config"
        file.write_text(yaml.safe_dump(content))
        monkeypatch.setenv("KUBECONFIG", str(file))
        return file

    return write


class Plugin:
    """Fake exec plug-in: a program that prints an ExecCredential and counts its runs."""

    VERSION = "client.authentication.k8s.io/v1beta1"

    def __init__(self, folder):
        self.file, self.runs_file, self.answer_file = folder / "plugin", folder / "runs", folder / "answer"
        self.runs_file.write_text("")
        self.file.write_text(
            f"#!{sys.executable}\nimport os, sys\n"
            f"open({str(self.runs_file)!r}, 'a').write(os.environ['REGION'] + ' ' + ' '.join(sys.argv[1:]) + '\\n')\n"
            f"text = open({str(self.answer_file)!r}).read()\n"
            "sys.exit('sign in again') if text == 'fail' else print(text)\n"
        )
        self.file.chmod(self.file.stat().st_mode | stat.S_IXUSR)
        self.user = {"exec": {"apiVersion": self.VERSION, "command": str(self.file),
                              "args": ["get-token", "--cluster", "c"], "env": [{"name": "REGION", "value": "here"}],
                              "interactiveMode": "Never", "provideClusterInfo": False}}  # fmt: skip

    def answers(self, expires_in=None, **status):
        if expires_in is not None:
            status["expirationTimestamp"] = (datetime.now(UTC) + timedelta(seconds=expires_in)).isoformat()
        content = {"apiVersion": self.VERSION, "kind": "ExecCredential", "status": status}
        self.answer_file.write_text(json.dumps(content))

    def fails(self):
        self.answer_file.write_text("fail")

    def runs(self):
        return len(self.runs_file.read_text().splitlines())


def load(credentials=None):
    credentials = credentials or Credentials()
    asyncio.run(credentials.load())
    return credentials


def test_a_pod_has_its_service_accounts_token_and_ca_and_the_address_of_the_service(pod):
    found = load()
    assert found.configuration.host == "https://10.96.0.1:443"
    assert found.current.authorization == "bearer one"
    assert found.current.tls == (AUTHORITY.certificate, b"", b"")
    assert "one" not in repr(found.current)
    assert RESTClientObject(found.configuration).ssl_context.get_ca_certs()[0]["subject"] == ((("commonName", "ca"),),)


def test_a_pods_token_is_read_again_once_it_is_a_minute_old(pod):
    clock = Clock()
    found = load(Credentials(clock))
    (pod / "token").write_text("two")
    asyncio.run(found.refresh())
    assert found.current.authorization == "bearer one"
    assert refreshed(found, clock) == found.configuration.api_key["BearerToken"] == "bearer two"


@pytest.mark.parametrize("broken", ["token", "ca.crt"])
def test_missing_or_empty_files_of_a_pod_are_an_error_only_before_the_first_login(pod, broken, caplog):
    clock = Clock()
    found = load(Credentials(clock))
    before = found.current
    (pod / broken).write_text("")
    assert refreshed(found, clock) == before.authorization
    assert found.current == before
    assert "using the last credentials: the service account's files cannot be read" in caplog.text
    with pytest.raises(LoginError, match=r"the service account's files cannot be read: .* empty"):
        load()
    if broken == "ca.crt":
        (pod / broken).unlink()
        with pytest.raises(LoginError, match="does not exist"):
            load()


def test_a_new_ca_of_a_pod_is_a_new_identity(pod):
    found = load()
    before = found.current
    (pod / "ca.crt").write_bytes(Authority("new").certificate)
    assert asyncio.run(found.renew(before))
    assert found.current.tls != before.tls


@pytest.mark.parametrize(
    ("user", "server", "authorization"),
    [
        ({"token": "inline"}, SERVER, "Bearer inline"),
        ({"tokenFile": "t"}, SERVER, "Bearer from-a-file"),  # in the kubeconfig's folder
        ({"username": "u", "password": "p"}, SERVER, "Basic dTpw"),
        ({}, "http://127.0.0.1:8001", ""),  # without TLS no credentials are needed
    ],
)
def test_the_authorization_comes_from_the_kubeconfig(write, tmp_path, user, server, authorization):
    (tmp_path / "t").write_text("from-a-file\n")
    write(user, server)
    found = load()
    assert (found.configuration.host, found.current.authorization) == (server, authorization)
    assert found.configuration.verify_ssl


def test_certificates_come_from_the_kubeconfig_or_from_files_and_can_be_used_for_tls(write, tmp_path):
    pair = AUTHORITY.issue("me")
    (tmp_path / "ca.crt").write_bytes(AUTHORITY.certificate)
    (tmp_path / "me.crt").write_bytes(pair.certificate)
    user = {"client-certificate": "me.crt", "client-key-data": base64.b64encode(pair.key).decode()}
    write(user, **{"certificate-authority": "ca.crt"})
    found = load()
    assert found.current.tls == (AUTHORITY.certificate, pair.certificate, pair.key)
    assert RESTClientObject(found.configuration).ssl_context.get_ca_certs()[0]["subject"] == ((("commonName", "ca"),),)
    write(user, **{"insecure-skip-tls-verify": True})
    assert not RESTClientObject(load().configuration).ssl_context.check_hostname


@pytest.mark.parametrize(
    ("user", "message"),
    [
        ({"tokenFile": "nowhere"}, "cannot be read: .*No such file"),
        ({"token": "t", "client-key-data": "A"}, "cannot be read"),
        ({"token": "t", "client-certificate": "nowhere"}, "cannot be read: File does not exists"),
        ({}, "has no credentials: its user needs a token, a client certificate or an exec plug-in"),
        ({"exec": {}}, "has no credentials"),
    ],
)
def test_a_kubeconfig_without_usable_credentials_is_refused_by_its_name(write, user, message):
    file = write(user)
    with pytest.raises(LoginError, match=message) as refused:
        load()
    assert str(file) in str(refused.value)


@pytest.mark.parametrize("text", ["", "a: b: c", "clusters: 3\ncurrent-context: x"])
def test_a_file_that_is_no_kubeconfig_is_refused_by_its_name(write, text):
    file = write({})
    file.write_text(text)
    with pytest.raises(LoginError, match=f"{file}.*cannot be read"):
        load()


def test_a_missing_context_a_missing_file_and_no_login_at_all_are_named(write, tmp_path, monkeypatch):
    file = write({"token": "t"})
    file.write_text(file.read_text().replace("current-context: x", "current-context: y"))
    with pytest.raises(LoginError, match=r"Expected object with name y in .*contexts"):
        load()
    file.unlink()
    with pytest.raises(LoginError, match=str(file)):
        load()
    monkeypatch.delenv("KUBECONFIG")
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(LoginError, match="neither a service account's token"):
        load()


def test_an_exec_plugin_is_run_again_when_its_token_expires_and_not_before(write, tmp_path):
    plugin, clock = Plugin(tmp_path), Clock()
    plugin.answers(token="first", expires_in=3600)
    write(plugin.user)
    found = load(Credentials(clock))
    assert plugin.runs_file.read_text() == "here get-token --cluster c\n"
    plugin.answers(token="second", expires_in=60)
    assert [refreshed(found, clock) for _ in range(3)] == ["Bearer first"] * 3
    assert plugin.runs() == 1
    assert asyncio.run(found.renew(found.current))
    assert found.current.authorization == "Bearer second"
    plugin.answers(token="third", expires_in=3600)
    assert refreshed(found, clock) == "Bearer third", "the second expires before the next minute ends"
    assert refreshed(found, clock) == "Bearer third"
    assert plugin.runs() == 3


def test_an_exec_plugin_that_names_no_expiry_is_run_every_minute(write, tmp_path):
    plugin, clock = Plugin(tmp_path), Clock()
    plugin.answers(token="first")
    write(plugin.user)
    found = load(Credentials(clock))
    plugin.answers(token="second")
    asyncio.run(found.refresh())
    assert found.current.authorization == "Bearer first"
    assert refreshed(found, clock) == "Bearer second"


def test_a_failing_exec_plugin_is_an_error_only_before_the_first_login(write, tmp_path, caplog):
    plugin, clock = Plugin(tmp_path), Clock()
    plugin.fails()
    write(plugin.user)
    found = Credentials(clock)
    with pytest.raises(LoginError, match=r"has no credentials: .*exec plug-in, whose failure is logged"):
        load(found)
    assert "sign in again" in caplog.text
    plugin.answers(token="first", expires_in=60)
    load(found)
    plugin.fails()
    assert refreshed(found, clock) == "Bearer first"
    assert not asyncio.run(found.renew(found.current))
    plugin.answers(token="second", expires_in=60)
    assert asyncio.run(found.renew(found.current))


def test_an_exec_plugin_that_hangs_is_an_error(write, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "LOGIN_SECONDS", 0.1)
    plugin = Plugin(tmp_path)
    end = tmp_path / "end"
    plugin.file.write_text(f"#!/bin/sh\nwhile [ ! -e {end} ]; do sleep 0.1; done\n")
    write(plugin.user)

    def has_ended():
        with contextlib.suppress(psutil.Error):
            return not any(str(plugin.file) in child.cmdline() for child in psutil.Process().children())

    async def scene():
        with pytest.raises(LoginError, match=r"its exec plug-in ran for 0\.1 s without an answer"):
            await Credentials().load()
        end.touch()
        await wait_until_async(has_ended)

    asyncio.run(scene())


def test_an_identity_that_another_request_has_replaced_is_not_read_again(write, tmp_path):
    plugin = Plugin(tmp_path)
    plugin.answers(token="first", expires_in=3600)
    write(plugin.user)
    found = load()
    refused = found.current
    plugin.answers(token="second", expires_in=3600)

    async def scene():
        return await asyncio.gather(*(found.renew(refused) for _ in range(16)))

    assert asyncio.run(scene()) == [True] * 16
    assert plugin.runs() == 2

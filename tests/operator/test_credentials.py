"""Tests of the operator's credentials: the service account's files in a pod, or a kubeconfig with any login method."""

import asyncio
import base64
import contextlib
import json
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


class Loaded(Credentials):
    """Credentials with a clock that `later` advances until they are read again."""

    def __init__(self):
        self.now = 0.0
        super().__init__(lambda: self.now)

    def later(self):
        """Returns the header after the credentials were refreshed a minute later."""
        self.now += REFRESH_SECONDS
        asyncio.run(self.refresh())
        return self.current.authorization


def load():
    credentials = Loaded()
    asyncio.run(credentials.load())
    return credentials


def ca_subject(credentials):
    return RESTClientObject(credentials.configuration).ssl_context.get_ca_certs()[0]["subject"][0][0]


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
    """Fake exec plug-in: a program that prints an ExecCredential and counts its runs. `user` is its kubeconfig user."""

    VERSION = "client.authentication.k8s.io/v1beta1"

    def __init__(self, folder):
        self.file, self.runs_file, self.answer_file = folder / "plugin", folder / "runs", folder / "answer"
        self.runs_file.write_text("")
        self.file.write_text(
            f"#!{sys.executable}\n"
            f"open({str(self.runs_file)!r}, 'a').write('run\\n')\n"
            f"text = open({str(self.answer_file)!r}).read()\n"
            "exit('sign in again') if text == 'fail' else print(text)\n"
        )
        self.file.chmod(0o700)
        self.user = {"exec": {"apiVersion": self.VERSION, "command": str(self.file), "interactiveMode": "Never"}}

    def answers(self, token, expires_in=None):
        status = {"token": token}
        if expires_in is not None:
            status["expirationTimestamp"] = (datetime.now(UTC) + timedelta(seconds=expires_in)).isoformat()
        content = {"apiVersion": self.VERSION, "kind": "ExecCredential", "status": status}
        self.answer_file.write_text(json.dumps(content))

    def fails(self):
        self.answer_file.write_text("fail")

    def runs(self):
        return len(self.runs_file.read_text().splitlines())


@pytest.fixture
def plugin(write, tmp_path):
    """Returns an exec plug-in that KUBECONFIG names."""
    made = Plugin(tmp_path)
    write(made.user)
    return made


def test_a_pods_token_is_read_again_once_it_is_a_minute_old_and_a_new_ca_is_a_new_identity(pod):
    found = load()
    before = found.current
    assert found.configuration.host == "https://10.96.0.1:443"
    assert before.authorization == "bearer one"
    assert before.tls == (AUTHORITY.certificate, b"", b"")
    assert "one" not in repr(before)
    assert ca_subject(found) == ("commonName", "ca")
    (pod / "token").write_text("two")
    asyncio.run(found.refresh())
    assert found.current.authorization == "bearer one"
    assert found.later() == found.configuration.api_key["BearerToken"] == "bearer two"
    (pod / "ca.crt").write_bytes(Authority("new").certificate)
    assert asyncio.run(found.renew(found.current))
    assert found.current.tls != before.tls


@pytest.mark.parametrize("broken", ["token", "ca.crt"])
def test_empty_files_of_a_pod_are_an_error_only_before_the_first_login(pod, broken, caplog):
    found = load()
    before = found.current
    (pod / broken).write_text("")
    assert found.later() == before.authorization
    assert found.current == before
    assert "using the last credentials: the service account's files cannot be read" in caplog.text
    with pytest.raises(LoginError, match=r"the service account's files cannot be read: .* empty"):
        load()


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


def test_certificates_come_from_the_kubeconfig_or_from_files(write, tmp_path):
    pair = AUTHORITY.issue("me")
    (tmp_path / "ca.crt").write_bytes(AUTHORITY.certificate)
    (tmp_path / "me.crt").write_bytes(pair.certificate)
    user = {"client-certificate": "me.crt", "client-key-data": base64.b64encode(pair.key).decode()}
    write(user, **{"certificate-authority": "ca.crt"})
    found = load()
    assert found.current.tls == (AUTHORITY.certificate, pair.certificate, pair.key)
    assert ca_subject(found) == ("commonName", "ca")


TOKEN = {"token": "t"}
# The user of a kubeconfig, a change of its text, and the message.
REFUSED = {
    "no file of the token": ({"tokenFile": "nowhere"}, str, "cannot be read: .*No such file"),
    "no text of the key": ({**TOKEN, "client-key-data": "A"}, str, "cannot be read"),
    "no file of the certificate": ({**TOKEN, "client-certificate": "nowhere"}, str, "cannot be read: File does not"),
    "no credentials": ({}, str, "has no credentials: its user needs a token, a client certificate or an exec plug-in"),
    "an empty plug-in": ({"exec": {}}, str, "has no credentials"),
    "no context": (TOKEN, lambda text: text.replace("current-context: x", "current-context: y"), "object with name y"),
    "no YAML": (TOKEN, lambda text: "a: b: c", "cannot be read"),
    "no kubeconfig": (TOKEN, lambda text: "clusters: 3\ncurrent-context: x", "cannot be read"),
    "an empty file": (TOKEN, lambda text: "", "cannot be read"),
}


@pytest.mark.parametrize(("user", "change", "message"), REFUSED.values(), ids=REFUSED)
def test_a_kubeconfig_without_usable_credentials_is_refused_by_its_name(write, user, change, message):
    file = write(user)
    file.write_text(change(file.read_text()))
    with pytest.raises(LoginError, match=message) as refused:
        load()
    assert str(file) in str(refused.value)


def test_a_missing_file_and_no_login_at_all_are_named(write, tmp_path, monkeypatch):
    file = write(TOKEN)
    file.unlink()
    with pytest.raises(LoginError, match=str(file)):
        load()
    monkeypatch.delenv("KUBECONFIG")
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(LoginError, match="neither a service account's token"):
        load()


def test_an_exec_plugin_is_run_again_when_its_token_expires_and_not_before(plugin):
    plugin.answers("first", expires_in=3600)
    found = load()
    plugin.answers("second", expires_in=60)
    assert [found.later() for _ in range(3)] == ["Bearer first"] * 3
    assert plugin.runs() == 1
    assert asyncio.run(found.renew(found.current))
    assert found.current.authorization == "Bearer second"
    plugin.answers("third")
    assert found.later() == "Bearer third", "the second expires before the next minute ends"
    plugin.answers("fourth")
    assert found.later() == "Bearer fourth", "without an expiry the plug-in runs every minute"
    assert plugin.runs() == 4


def test_a_failing_exec_plugin_is_an_error_only_before_the_first_login(plugin, caplog):
    plugin.fails()
    with pytest.raises(LoginError, match=r"has no credentials: .*exec plug-in, whose failure is logged"):
        load()
    assert "sign in again" in caplog.text
    plugin.answers("first", expires_in=60)
    found = load()
    plugin.fails()
    assert found.later() == "Bearer first"
    assert not asyncio.run(found.renew(found.current))
    plugin.answers("second", expires_in=60)
    assert asyncio.run(found.renew(found.current))


def test_an_exec_plugin_that_hangs_is_an_error(plugin, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "LOGIN_SECONDS", 0.1)
    end = tmp_path / "end"
    plugin.file.write_text(f"#!/bin/sh\nwhile [ ! -e {end} ]; do sleep 0.1; done\n")

    def has_ended():
        with contextlib.suppress(psutil.Error):
            return not any(str(plugin.file) in child.cmdline() for child in psutil.Process().children())

    async def scene():
        with pytest.raises(LoginError, match=r"its exec plug-in ran for 0\.1 s without an answer"):
            await Credentials().load()
        end.touch()
        await wait_until_async(has_ended)

    asyncio.run(scene())


def test_an_identity_that_another_request_has_replaced_is_not_read_again(plugin):
    plugin.answers("first", expires_in=3600)
    found = load()
    refused = found.current
    plugin.answers("second", expires_in=3600)

    async def scene():
        return await asyncio.gather(*(found.renew(refused) for _ in range(16)))

    assert asyncio.run(scene()) == [True] * 16
    assert plugin.runs() == 2

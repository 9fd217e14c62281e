"""Who the operator is for the API server: a pod's files, or a kubeconfig."""

import base64

import pytest
import yaml

from e2e.cluster.pki import Authority
from unmask_operator.client.login import LoginError, login

PEM = "-----BEGIN CERTIFICATE-----\nCA\n-----END CERTIFICATE-----\n"


def kubeconfig(folder, user, **cluster):
    content = {
        "clusters": [{"name": "c", "cluster": {"server": "https://10.0.0.1:6443/", **cluster}}],
        "users": [{"name": "other", "user": {"token": "no"}}, {"name": "u", "user": user}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    file = folder / "config"
    file.write_text(yaml.safe_dump(content))
    return {"KUBECONFIG": str(file)}


def test_a_pod_is_its_service_account_whose_token_is_read_anew(tmp_path):
    (tmp_path / "ca.crt").write_text(PEM)
    (tmp_path / "token").write_text("one\n")
    first = login(tmp_path, {})
    assert (first.server, first.headers()) == ("https://kubernetes.default.svc", {"Authorization": "Bearer one"})
    assert first.ca == PEM.strip()
    (tmp_path / "token").write_text("two\n")
    assert login(tmp_path, {}).token == "two"
    assert "two" not in repr(login(tmp_path, {}))
    (tmp_path / "ca.crt").unlink()
    with pytest.raises(LoginError, match="service account's files cannot be read"):
        login(tmp_path, {})


def test_a_kubeconfigs_token_may_be_a_file_beside_it(tmp_path):
    (tmp_path / "t").write_text("from-a-file\n")
    for user, token in (({"token": "plain"}, "plain"), ({"tokenFile": "t"}, "from-a-file"), ({}, "")):
        found = login(tmp_path / "none", kubeconfig(tmp_path, user))
        assert (found.server, found.token, found.insecure) == ("https://10.0.0.1:6443", token, False)
    assert found.headers() == {}


def test_a_kubeconfigs_certificates_are_read_from_it_or_from_files_and_are_good_for_tls(tmp_path):
    authority = Authority("ca")
    pair = authority.issue("me")
    (tmp_path / "ca.crt").write_bytes(authority.certificate)
    (tmp_path / "me.crt").write_bytes(pair.certificate)
    user = {"client-certificate": "me.crt", "client-key-data": base64.b64encode(pair.key).decode()}
    found = login(tmp_path / "none", kubeconfig(tmp_path, user, **{"certificate-authority": "ca.crt"}))
    assert found.tls().get_ca_certs()[0]["subject"] == ((("commonName", "ca"),),)
    open_to_all = login(tmp_path / "none", kubeconfig(tmp_path, user, **{"insecure-skip-tls-verify": True}))
    assert not open_to_all.tls().check_hostname


@pytest.mark.parametrize(
    ("user", "said"),
    [
        ({"exec": {}}, "users.exec is not supported; use a token or a client certificate"),
        ({"tokenFile": "nowhere"}, "No such file"),
        ({"client-key-data": "A"}, "cannot be read"),
    ],
)
def test_a_kubeconfig_that_is_of_no_use_is_refused_by_its_name(tmp_path, user, said):
    environ = kubeconfig(tmp_path, user)
    with pytest.raises(LoginError, match=said) as refused:
        login(tmp_path / "none", environ)
    assert environ["KUBECONFIG"] in str(refused.value)


def test_a_context_that_is_not_there_and_no_login_at_all_are_told(tmp_path, monkeypatch):
    environ = kubeconfig(tmp_path, {})
    text = (tmp_path / "config").read_text().replace("current-context: x", "current-context: y")
    (tmp_path / "config").write_text(text)
    with pytest.raises(LoginError, match="contexts has no 'y'; set current-context to one that exists"):
        login(tmp_path / "none", environ)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(LoginError, match="neither a service account's token"):
        login(tmp_path / "none", {})

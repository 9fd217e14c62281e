"""Where the API server is and who we are there: a pod's service account, or a developer's kubeconfig."""

import base64
import os
import ssl
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

IN_POD = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class LoginError(Exception):
    """There is no login, or none that can be read."""


@dataclass(frozen=True)
class Login:
    server: str  # the API server's address
    token: str = field(default="", repr=False)  # a bearer token, "" for none
    ca: str = ""  # who signed the server's certificate (PEM); "" is whom the system trusts
    certificate: str = field(default="", repr=False)  # the client's own and its key (PEM), "" for none
    insecure: bool = False  # the server's certificate is not looked at

    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}

    def tls(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cadata=self.ca or None)
        if self.certificate:
            with tempfile.NamedTemporaryFile("w") as file:  # ssl reads it from files alone
                file.write(self.certificate)
                file.flush()
                context.load_cert_chain(file.name)
        if self.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


def login(pod: Path = IN_POD, environ: Mapping[str, str] = os.environ) -> Login:
    """Read anew at each call: the kubelet replaces the token's file about once an hour.

    Of a kubeconfig it takes a token or a certificate; no exec plug-ins.
    """
    if (pod / "token").exists():
        try:
            return Login("https://kubernetes.default.svc", _text(pod / "token"), _text(pod / "ca.crt"))
        except OSError as error:
            raise LoginError(f"the service account's files cannot be read: {error}") from error
    file = Path(environ.get("KUBECONFIG") or Path.home() / ".kube" / "config")
    if not file.exists() and not environ.get("KUBECONFIG"):
        raise LoginError("found neither a service account's token (in a pod) nor a kubeconfig (KUBECONFIG)")
    try:
        return _from_kubeconfig(file)
    except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError) as error:
        raise LoginError(f"the kubeconfig {file} (KUBECONFIG) cannot be read: {error}") from error


def _from_kubeconfig(file: Path) -> Login:
    content = yaml.safe_load(file.read_text(encoding="utf-8"))
    context = _named(content, "contexts", "context", content["current-context"])
    cluster = _named(content, "clusters", "cluster", context["cluster"])
    user = _named(content, "users", "user", context["user"])
    if unknown := {"exec", "auth-provider", "username"} & set(user):
        raise ValueError(f"users.{unknown.pop()} is not supported; use a token or a client certificate")
    token = user.get("token") or (_text(file.parent / user["tokenFile"]) if "tokenFile" in user else "")
    own = _pem(user, "client-certificate", file.parent) + _pem(user, "client-key", file.parent)
    ca = _pem(cluster, "certificate-authority", file.parent)
    return Login(cluster["server"].rstrip("/"), token, ca, own, bool(cluster.get("insecure-skip-tls-verify")))


def _named(content: Mapping[str, Any], plural: str, member: str, name: str) -> dict[str, Any]:
    for entry in content.get(plural) or ():
        if entry["name"] == name:
            return dict(entry[member] or {})
    raise ValueError(f"{plural} has no {name!r}; set current-context to one that exists")


def _pem(entry: Mapping[str, Any], member: str, folder: Path) -> str:
    """What a kubeconfig holds itself, or names a file of; a path may be relative to its own."""
    if data := entry.get(f"{member}-data"):
        return base64.b64decode(data).decode().rstrip() + "\n"
    return _text(folder / entry[member]) + "\n" if member in entry else ""


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8").strip()

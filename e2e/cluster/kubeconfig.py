"""Kubeconfig files: written whole, with everything inside; read as far as our own client needs."""

from __future__ import annotations

import base64
import ssl
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from e2e.cluster.pki import Pair


@dataclass(frozen=True)
class Access:
    """How to reach a cluster: its address, its context's name, headers that prove who asks, its CA (PEM), TLS."""

    server: str
    context: str
    headers: dict[str, str]
    authority: bytes
    tls: ssl.SSLContext | bool


def write(path: Path, server: str, ca: bytes, *, user: str, token: str = "", pair: Pair | None = None) -> Path:
    """A kubeconfig with one context, whose user proves itself by a bearer token or a client certificate."""
    proof: dict[str, Any] = {"token": token} if token else {}
    if pair:
        proof["client-certificate-data"] = _text(pair.certificate)
        proof["client-key-data"] = _text(pair.key)
    cluster = {"server": server, **({"certificate-authority-data": _text(ca)} if ca else {})}
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "unmask-e2e", "cluster": cluster}],
        "users": [{"name": user, "user": proof}],
        "contexts": [{"name": "unmask-e2e", "context": {"cluster": "unmask-e2e", "user": user}}],
        "current-context": "unmask-e2e",
    }
    path.touch(mode=0o600)
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return path


def read(path: Path) -> Access:
    """The current context of a kubeconfig. ValueError where it authenticates in a way that is not built."""
    content = yaml.safe_load(path.read_text())
    context = content.get("current-context", "")
    chosen = _named(content, "contexts", "context", context, path)
    cluster = _named(content, "clusters", "cluster", chosen["cluster"], path)
    user = _named(content, "users", "user", chosen["user"], path)
    if unknown := {"exec", "auth-provider", "username"} & set(user):
        raise ValueError(f"{path}: users.{unknown.pop()} is not supported; use a token or a client certificate")
    token = user.get("token") or (Path(user["tokenFile"]).read_text().strip() if "tokenFile" in user else "")
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return Access(cluster["server"], context, headers, _bytes(cluster, "certificate-authority"), _tls(cluster, user))


def _named(content: dict[str, Any], plural: str, key: str, name: str, path: Path) -> dict[str, Any]:
    for entry in content.get(plural) or ():
        if entry["name"] == name:
            return dict(entry[key] or {})
    raise ValueError(f"{path}: {plural} has no {name!r}; set current-context to one that exists")


def _tls(cluster: dict[str, Any], user: dict[str, Any]) -> ssl.SSLContext | bool:
    if not cluster["server"].startswith("https"):
        return False
    context = ssl.create_default_context(cadata=_bytes(cluster, "certificate-authority").decode() or None)
    if cluster.get("insecure-skip-tls-verify"):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    certificate, key = _bytes(user, "client-certificate"), _bytes(user, "client-key")
    if certificate:
        with tempfile.NamedTemporaryFile() as file:  # ssl loads client certificates from files only
            file.write(certificate + b"\n" + key)
            file.flush()
            context.load_cert_chain(file.name)
    return context


def _bytes(entry: dict[str, Any], key: str) -> bytes:
    if data := entry.get(f"{key}-data"):
        return base64.b64decode(data)
    return Path(entry[key]).read_bytes() if key in entry else b""


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()

"""Writes self-contained kubeconfig files, and reads kubeconfig files with the official client."""

from __future__ import annotations

import base64
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from kubernetes.client import Configuration
from kubernetes.config import ConfigException, list_kube_config_contexts, load_kube_config

from e2e.cluster.pki import Pair

BEARER = "BearerToken"  # key under which the official client stores the value of the Authorization header


@dataclass(frozen=True)
class Access:
    """Access to a cluster: its address, the context's name, headers with credentials, its CA (PEM), TLS settings."""

    server: str
    context: str
    headers: dict[str, str]
    authority: bytes
    tls: ssl.SSLContext | bool


def write(path: Path, server: str, ca: bytes, *, user: str, token: str = "", pair: Pair | None = None) -> Path:
    """Writes a kubeconfig with one context, whose user authenticates with a bearer token or a client certificate."""
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


def load(path: Path) -> Configuration:
    """Returns the current context of a kubeconfig, for the official client.

    Raises:
        ValueError: It cannot be used. The message has the reason.
    """
    configuration = Configuration(retries=False, connection_pool_maxsize=64)
    configuration.proxy = None  # ignores the proxy of the environment; the kubeconfig may name one
    try:
        load_kube_config(str(path), client_configuration=configuration, persist_config=False)
    except ConfigException as error:
        raise ValueError(f"{path}: {error}") from error
    proven = configuration.api_key or configuration.cert_file
    if configuration.host.startswith("https") and not proven:
        raise ValueError(
            f"{path}: no credentials; the user needs a token, a client certificate or an exec plug-in "
            "(the log has its error)"
        )
    return configuration


def read(path: Path) -> Access:
    """Returns the current context of a kubeconfig, for clients other than the official one.

    Raises:
        ValueError: It cannot be used. The message has the reason.
    """
    configuration = load(path)
    _, current = list_kube_config_contexts(str(path))
    authorization = configuration.get_api_key_with_prefix(BEARER)
    headers = {"Authorization": authorization} if authorization else {}
    authority = Path(configuration.ssl_ca_cert).read_bytes() if configuration.ssl_ca_cert else b""
    return Access(configuration.host, current["name"], headers, authority, _tls(configuration))


def _tls(configuration: Configuration) -> ssl.SSLContext | bool:
    if not configuration.host.startswith("https"):
        return False
    context = ssl.create_default_context(cafile=configuration.ssl_ca_cert)
    if not configuration.verify_ssl:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if configuration.cert_file:
        context.load_cert_chain(configuration.cert_file, configuration.key_file)
    return context


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()

"""API servers for the operator's tests, and namespaces on them.

Each xdist worker has its own, started by the first test that uses the fixture: etcd and kube-apiserver, ready in about
4 s. If UNMASK_E2E_KUBECONFIG is set, that cluster is used instead.
"""

import contextlib
import secrets
from collections.abc import Iterator

import pytest

from e2e.cluster import ApiServer, Kube, external_api_server, start_api_server
from e2e.cluster.config import environment


@contextlib.contextmanager
def _server(*, controllers: bool) -> Iterator[ApiServer]:
    external = environment().kubeconfig
    with external_api_server(external) if external else start_api_server(controllers=controllers) as server:
        yield server


@contextlib.contextmanager
def _namespace(server: ApiServer) -> Iterator[str]:
    kube = server.admin()
    name = f"test-{secrets.token_hex(4)}"
    kube.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    if not server.controllers:  # no controller creates it, and the API server rejects pods without it
        kube.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": name}})
    yield name
    kube.delete({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    kube.close()


@pytest.fixture(scope="session")
def api_server() -> Iterator[ApiServer]:
    """Yields an API server without controllers: only the test and processes that it starts change objects."""
    with _server(controllers=False) as server:
        yield server


@pytest.fixture(scope="session")
def controlled_api_server() -> Iterator[ApiServer]:
    """Yields an API server with kube-controller-manager.

    It runs garbage collection, quota and the HPA controller, and creates ReplicaSets and pods. Pods never run.
    """
    with _server(controllers=True) as server:
        yield server


@pytest.fixture(scope="session")
def admin(api_server: ApiServer) -> Iterator[Kube]:
    """Yields the admin's client of `api_server`."""
    kube = api_server.admin()
    yield kube
    kube.close()


@pytest.fixture(scope="session")
def controlled_admin(controlled_api_server: ApiServer) -> Iterator[Kube]:
    """Yields the admin's client of `controlled_api_server`."""
    kube = controlled_api_server.admin()
    yield kube
    kube.close()


@pytest.fixture
def namespace(api_server: ApiServer) -> Iterator[str]:
    """Yields a new namespace of `api_server`."""
    with _namespace(api_server) as name:
        yield name


@pytest.fixture
def controlled_namespace(controlled_api_server: ApiServer) -> Iterator[str]:
    """Yields a new namespace of `controlled_api_server`."""
    with _namespace(controlled_api_server) as name:
        yield name

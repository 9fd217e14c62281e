"""Operator processes for tests against an API server."""

from collections.abc import Iterator

import pytest

from e2e.cluster import ApiServer, Kube
from e2e.cluster.operator_process import OperatorProcess, cluster_wide, install


@pytest.fixture
def operator(api_server: ApiServer, admin: Kube, namespace: str) -> Iterator[OperatorProcess]:
    """Yields an operator that watches only the test's namespace."""
    install(api_server, admin, namespace, [namespace])
    with OperatorProcess(api_server, namespace, [namespace]) as process:
        yield process


@pytest.fixture(scope="module")
def shared_operator(api_server: ApiServer, admin: Kube) -> Iterator[OperatorProcess]:
    """Yields an operator of the whole cluster that all tests of a module use."""
    yield from cluster_wide(api_server, admin)

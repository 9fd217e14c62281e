"""The cluster under test: the one of UNMASK_E2E_KUBECONFIG, which `make e2e` starts and names there."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.cluster import Kube
from e2e.cluster.config import environment
from e2e.release import Release

FOLDER = Path(__file__).parent
LIMIT = 1800  # seconds for one test


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Those that replace the operator come last: while they do, nobody looks after the others' services."""
    ours = [item for item in items if item.path.is_relative_to(FOLDER)]  # the session may have others, too
    for item in ours:
        item.add_marker(pytest.mark.node)
        item.add_marker(pytest.mark.timeout(LIMIT))
    last = {item for item in ours if item.path.name.startswith("test_operator_")}
    items.sort(key=lambda item: item in last)


@pytest.fixture(scope="session")
def kube() -> Iterator[Kube]:
    """The admin's client. Says first which cluster it is: tests create and delete things there."""
    config = environment().kubeconfig
    if config is None:
        pytest.exit('no cluster: run `make e2e`, or `eval "$(python -m e2e.cluster up)"` first', returncode=2)
    client = Kube(config)
    print(f"\ntesting the cluster of {config}: context {client.context}, {client.server}", file=sys.__stderr__)
    yield client
    client.close()


@pytest.fixture
def namespace(kube: Kube) -> Iterator[str]:
    """A new namespace, where pods may be created; deleted with all that is in it."""
    name = f"e2e-{secrets.token_hex(3)}"
    made = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
    kube.create(made)
    kube.wait("the namespace's service account", lambda: kube.get("v1", "ServiceAccount", "default", name))
    yield name
    kube.delete(made)


@pytest.fixture
def release(kube: Kube) -> Iterator[Release]:
    """The chart's release, to upgrade and take away: afterwards it is as it was found. No other test runs meanwhile."""
    found = Release(kube)
    yield found
    found.restore()

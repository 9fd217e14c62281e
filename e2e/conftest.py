"""Fixtures for tests on the cluster that UNMASK_E2E_KUBECONFIG names. `make e2e` starts one and sets the variable."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from e2e.cluster import Kube
from e2e.cluster.config import environment
from e2e.logs import collect
from e2e.release import Release

FOLDER = Path(__file__).parent
LIMIT = 1800  # seconds for one test


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Adds the marker and the timeout, and runs tests that replace the operator last.

    While the operator is replaced, the services of other tests are not reconciled.
    """
    ours = [item for item in items if item.path.is_relative_to(FOLDER)]  # a session may include tests of other folders
    for item in ours:
        item.add_marker(pytest.mark.node)
        item.add_marker(pytest.mark.timeout(LIMIT))
    last = {item for item in ours if item.path.name.startswith("test_operator_")}
    items.sort(key=lambda item: item in last)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Adds the logs of the API server and of the operator to the report of a failed test.

    The cluster ends with the session, and its logs with it.
    """
    report = yield
    if report.failed and isinstance(item, pytest.Function) and "kube" in item.funcargs:
        try:
            for section in collect(item.funcargs["kube"]):
                report.sections.append(section)
        except Exception as error:  # an error of this hook would end the session without the report
            report.sections.append(("logs", f"cannot be collected: {error!r}"))
    return report


@pytest.fixture(scope="session")
def kube() -> Iterator[Kube]:
    """Yields the client of the cluster's admin. Prints the cluster first, because tests create and delete objects."""
    config = environment().kubeconfig
    if config is None:
        pytest.exit('no cluster: run `make e2e`, or `eval "$(python -m e2e.cluster up)"` first', returncode=2)
    client = Kube(config)
    print(f"\ntesting the cluster of {config}: context {client.context}, {client.server}", file=sys.__stderr__)
    yield client
    client.close()


@pytest.fixture
def namespace(kube: Kube) -> Iterator[str]:
    """Yields a new namespace in which pods can be created. It is deleted with its content after the test."""
    name = f"e2e-{secrets.token_hex(3)}"
    made = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
    kube.create(made)
    kube.wait("the namespace's service account", lambda: kube.get("v1", "ServiceAccount", "default", name))
    yield name
    kube.delete(made)


@pytest.fixture
def release(kube: Kube) -> Iterator[Release]:
    """Yields the chart's release, which the test may upgrade or uninstall. It is restored after the test.

    No other test runs at the same time.
    """
    found = Release(kube)
    yield found
    found.restore()

"""Test of an operator that is limited to some namespaces: it acts only there, and has no permissions elsewhere."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from e2e.cluster import ApiError, Kube
from e2e.cluster.config import environment
from e2e.release import ACCOUNT, Release
from e2e.services import API, KIND, LABEL, demo, get, wait_condition


@pytest.fixture
def elsewhere(kube: Kube, namespace: str) -> Iterator[str]:
    """Yields a second namespace, which is not in the operator's `watchNamespaces`."""
    name = f"{namespace}-other"
    made = kube.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    yield name
    kube.delete(made)


def test_the_operator_acts_only_in_its_namespaces(kube: Kube, namespace: str, elsewhere: str, release: Release) -> None:
    release.upgrade({"watchNamespaces": [namespace]})
    kube.create(demo(elsewhere, spec={"suspend": True}))
    kube.create(demo(namespace, spec={"suspend": True}))
    wait_condition(kube, namespace, "Accepted")
    kube.create(demo(namespace, "later", {"suspend": True}))
    wait_condition(kube, namespace, "Accepted", name="later")  # by now it would have acted elsewhere too
    assert "status" not in get(kube, elsewhere)
    assert not kube.list("apps/v1", "Deployment", elsewhere, labelSelector=LABEL)
    for api, kind in (("v1", "Pod"), ("apps/v1", "Deployment"), (API, KIND)):
        assert may_list(api, kind, namespace)
        assert not may_list(api, kind, elsewhere)
        assert not may_list(api, kind, "")

    release.restore()
    wait_condition(kube, elsewhere, "Accepted")


def may_list(api: str, kind: str, namespace: str) -> bool:
    """Returns whether the operator's service account may list a kind in a namespace ("": in the whole cluster)."""
    config = environment().kubeconfig
    assert config is not None
    operator = Kube(config, user=ACCOUNT, groups=("system:serviceaccounts", "system:authenticated"))
    try:
        operator.list(api, kind, namespace)
    except ApiError as error:
        if error.status != 403:
            raise
        return False
    finally:
        operator.close()
    return True

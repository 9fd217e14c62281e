"""An operator of some namespaces: it acts there and nowhere else, and could not elsewhere."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from e2e.cluster import ApiError, Kube
from e2e.cluster.config import environment
from e2e.release import ACCOUNT, Release
from e2e.services import API, KIND, LABEL, demo, get, wait_condition


@pytest.fixture
def elsewhere(kube: Kube, namespace: str) -> Iterator[str]:
    """A second namespace, which the operator is not told of."""
    name = f"{namespace}-other"
    made = kube.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    yield name
    kube.delete(made)


def test_it_acts_in_its_namespaces_alone(kube: Kube, namespace: str, elsewhere: str, release: Release) -> None:
    release.upgrade({"watchNamespaces": [namespace]})
    kube.create(demo(elsewhere, spec={"suspend": True}))
    kube.create(demo(namespace, spec={"suspend": True}))
    wait_condition(kube, namespace, "Accepted")
    kube.create(demo(namespace, "later", {"suspend": True}))
    wait_condition(kube, namespace, "Accepted", name="later")  # what it does elsewhere, it would have done by now
    assert "status" not in get(kube, elsewhere)
    assert not kube.list("apps/v1", "Deployment", elsewhere, labelSelector=LABEL)
    for api, kind in (("v1", "Pod"), ("apps/v1", "Deployment"), (API, KIND)):
        assert may_list(api, kind, namespace)
        assert not may_list(api, kind, elsewhere)
        assert not may_list(api, kind, "")

    release.restore()
    wait_condition(kube, elsewhere, "Accepted")


def may_list(api: str, kind: str, namespace: str) -> bool:
    """Whether the operator's account may, tried in its name; "" is the whole cluster."""
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

"""Tests that a real API server accepts the examples."""

from pathlib import Path

import pytest
import yaml

from e2e.cluster.authorization import restrict
from tools import crd

pytestmark = pytest.mark.cluster
ROOT = Path(__file__).parents[2]


DOCUMENTS = [doc for path in sorted((ROOT / "examples").glob("*.yaml")) for doc in yaml.safe_load_all(path.read_text())]
EXAMPLES = [doc for doc in DOCUMENTS if doc["kind"] != "Namespace"]


@pytest.fixture(scope="module")
def served(admin):
    admin.define(crd.crd())


def create(admin, obj, namespace):
    placed = {**obj, "metadata": {**obj["metadata"], "namespace": namespace}}
    return admin.create(placed, dryRun="All", fieldValidation="Strict")


@pytest.mark.parametrize("obj", EXAMPLES, ids=lambda obj: obj["metadata"]["name"])
def test_an_example_is_accepted(admin, served, namespace, obj):
    create(admin, obj, namespace)


def test_pods_of_the_client_job_pass_the_restricted_level(admin, namespace):
    restrict(admin, namespace)
    (job,) = (obj for obj in EXAMPLES if obj["kind"] == "Job")
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "client"}, "spec": job["spec"]["template"]["spec"]}
    create(admin, pod, namespace)

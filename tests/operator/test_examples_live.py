"""A real API server takes the examples, and the policy that the docs recommend refuses what it says."""

import re
from pathlib import Path

import pytest
import yaml

from e2e.cluster.kube import ApiError
from tests.operator.live.process import wait_served
from unmask_operator.api import crd
from unmask_operator.objects import API_VERSION, KIND

pytestmark = pytest.mark.cluster
ROOT = Path(__file__).parents[2]


DOCUMENTS = [doc for path in sorted((ROOT / "examples").glob("*.yaml")) for doc in yaml.safe_load_all(path.read_text())]
EXAMPLES = [doc for doc in DOCUMENTS if doc["kind"] != "Namespace"]


@pytest.fixture(scope="module")
def served(admin):
    admin.apply(crd.crd())
    wait_served(admin, API_VERSION, KIND)


def create(admin, obj, namespace):
    placed = {**obj, "metadata": {**obj["metadata"], "namespace": namespace}}
    return admin.create(placed, dryRun="All", fieldValidation="Strict")


@pytest.mark.parametrize("obj", EXAMPLES, ids=lambda obj: obj["metadata"]["name"])
def test_an_example_is_taken(admin, served, namespace, obj):
    create(admin, obj, namespace)


def test_pods_of_the_client_job_pass_the_restricted_level(admin, namespace):
    label = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
    admin.patch({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}, label)
    (job,) = (obj for obj in EXAMPLES if obj["kind"] == "Job")
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "client"}, "spec": job["spec"]["template"]["spec"]}
    create(admin, pod, namespace)


def service(**spec):
    spec = {"model": {"uri": "hf://my-org/model"}, **spec}
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "policed"}, "spec": spec}


def test_the_recommended_policy_keeps_users_from_images_and_pod_templates(admin, served, namespace):
    text = (ROOT / "docs/privileges.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    policy, binding = yaml.safe_load_all(block)
    # here alone, and under a name of its own: the API server is shared
    policy["metadata"]["name"] = binding["metadata"]["name"] = binding["spec"]["policyName"] = namespace
    here = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    binding["spec"]["matchResources"]["namespaceSelector"] = here
    refused = {
        "podTemplate is for the platform team": service(podTemplate={"spec": {"hostNetwork": True}}),
        "image must come from": service(image="elsewhere/runtime:1"),
        "a service stays inside": service(service={"type": "NodePort"}),
        "only our own models": service(model={"uri": "hf://other/model"}),
    }

    def acts():
        try:
            create(admin, refused["only our own models"], namespace)
        except ApiError as error:
            return error.status == 422 and "only our own models" in error.message
        return None

    try:
        admin.apply(policy, fieldValidation="Strict")
        admin.apply(binding, fieldValidation="Strict")
        admin.wait("the policy", acts)
        for sentence, obj in refused.items():
            with pytest.raises(ApiError, match=sentence):
                create(admin, obj, namespace)
        create(admin, service(), namespace)
        create(admin, service(image="registry.example.com/team/unmask-runtime:1", service={"port": 81}), namespace)
        create(admin, service(model={"uri": "demo://"}), namespace)
    finally:
        admin.delete(binding)
        admin.delete(policy)

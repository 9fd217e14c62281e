"""The example policy of docs/privileges.md on a real API server: plain services pass, each way round it does not."""

import pytest
import yaml

from e2e.cluster.kube import ApiError
from tests.operator.test_crd import changed
from tests.operator.test_platform_docs import DOCS, blocks
from tools import crd
from unmask_operator.objects import API_VERSION, KIND

pytestmark = pytest.mark.cluster

HUB = {"uri": "hf://my-org/model"}
ALLOWED = (
    {},
    {"model": HUB, "image": "registry.example.com/team/runtime:1", "service": {"port": 81}},
    {"engine": {"maxModelLen": 64}},
    {"engine": {"extraArgs": ["--max-queue=5", "--cors-allow-origins=https://a.example"]}},
)
REFUSED = (
    ("podTemplate is for the platform team", {"podTemplate": {"spec": {}}}),
    ("image must come from", {"image": "elsewhere/runtime:1"}),
    ("only our own models", {"model": {"uri": "hf://other/model"}}),
    ("only our own models", {"model": {"uri": "pvc://claim"}}),
    ("a service stays inside", {"service": {"type": "LoadBalancer"}}),
    ("a service stays inside", {"service": {"type": "NodePort"}}),
    ("of the runtime's other flags", {"engine": {"extraArgs": ["--max-queue", "5"]}}),
    ("of the runtime's other flags", {"engine": {"extraArgs": ["--flag-of-tomorrow=/proc/self/environ"]}}),
    ("of the runtime's other flags", {"engine": {"extraArgs": ["--max-queue=5", "--chat-templ=/proc/self/environ"]}}),
)


@pytest.fixture
def guarded(admin, namespace):
    """A namespace in which the policy holds; the binding leaves the tests of others alone."""

    def served():
        try:
            return [admin.list(API_VERSION, KIND, namespace)]
        except ApiError as error:
            if error.status in (404, 429):
                return None
            raise

    admin.apply(crd.crd())
    admin.wait("the kind", served)
    text = next(block for block in blocks(DOCS / "privileges.md", "yaml") if "ValidatingAdmissionPolicy" in block)
    policy, binding = yaml.safe_load_all(text)
    labels = {"kubernetes.io/metadata.name": namespace}
    binding["spec"]["matchResources"]["namespaceSelector"] = {"matchLabels": labels}
    policy["metadata"]["name"] = binding["metadata"]["name"] = binding["spec"]["policyName"] = namespace
    admin.apply(policy, fieldValidation="Strict")
    admin.apply(binding, fieldValidation="Strict")

    def holds():
        try:
            store(admin, namespace, REFUSED[0][1])
        except ApiError as error:
            return "platform team" in error.message
        return False

    admin.wait("the policy", holds)
    yield namespace
    admin.delete(binding)
    admin.delete(policy)


def store(admin, namespace, change):
    obj = changed(change)
    obj["metadata"]["namespace"] = namespace
    return admin.create(obj, fieldValidation="Strict", dryRun="All")


def test_the_example_policy_leaves_no_escape(admin, guarded):
    for change in ALLOWED:
        store(admin, guarded, change)
    for words, change in REFUSED:
        with pytest.raises(ApiError) as caught:
            store(admin, guarded, change)
        assert words in caught.value.message, change

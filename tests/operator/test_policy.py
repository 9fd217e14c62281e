"""The example policy of docs/privileges.md on a real API server: plain services pass, each way round it does not."""

import pytest
import yaml

from e2e.cluster.kube import ApiError
from tests.operator.samples import child, make, observe, resource
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


def documented(name):
    """A policy and its binding, as the page has them."""
    found = [list(yaml.safe_load_all(block)) for block in blocks(DOCS / "privileges.md", "yaml")]
    return next(pair for pair in found if pair[0].get("metadata", {}).get("name") == name)


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
    policy, binding = documented("unmask-no-escape")
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


def test_the_operators_policy_lets_it_run_engines_alone(api_server, admin, namespace):
    policy, binding = documented("unmask-operator-runs-engines")
    account = f"system:serviceaccount:{namespace}:unmask-operator"
    condition = policy["spec"]["matchConditions"][0]
    assert "'system:serviceaccount:unmask-system:unmask-operator'" in condition["expression"]
    condition["expression"] = f"request.userInfo.username == '{account}'"
    policy["metadata"]["name"] = binding["metadata"]["name"] = binding["spec"]["policyName"] = f"{namespace}-operator"
    rules = [{"apiGroups": ["apps"], "resources": ["deployments"], "verbs": ["create"]}]
    about = {"metadata": {"name": "deploys", "namespace": namespace}}
    rbac = "rbac.authorization.k8s.io"
    admin.create({"apiVersion": f"{rbac}/v1", "kind": "Role", **about, "rules": rules})
    subject = {"kind": "ServiceAccount", "name": "unmask-operator", "namespace": namespace}
    role = {"apiGroup": rbac, "kind": "Role", "name": "deploys"}
    admin.create({"apiVersion": f"{rbac}/v1", "kind": "RoleBinding", **about, "roleRef": role, "subjects": [subject]})
    engine = child(make(observe(resource(image="registry.example.com/team/unmask-runtime:0.1.0"))), "Deployment")
    del engine["metadata"]["ownerReferences"]
    engine["metadata"]["namespace"] = namespace
    operator = api_server.admin(user=account)

    def changed_by(**members):
        pod = engine["spec"]["template"]["spec"] | members
        template = {**engine["spec"]["template"], "spec": pod}
        return {**engine, "spec": {**engine["spec"], "template": template}}

    main = engine["spec"]["template"]["spec"]["containers"][0]
    refused = (
        ("under their own ServiceAccount", changed_by(serviceAccountName="admin")),
        ("the runtime's image", changed_by(containers=[{**main, "image": "elsewhere/miner:1"}])),
        ("the runtime's image", changed_by(initContainers=[{"name": "first", "image": "elsewhere/miner:1"}])),
    )

    def holds():
        try:
            operator.create(refused[0][1], dryRun="All")
        except ApiError as error:
            return "under their own" in error.message
        return False

    admin.apply(policy, fieldValidation="Strict")
    admin.apply(binding, fieldValidation="Strict")
    try:
        admin.wait("the policy", holds)
        operator.create(engine, dryRun="All")
        for words, deployment in refused:
            with pytest.raises(ApiError) as caught:
                operator.create(deployment, dryRun="All")
            assert words in caught.value.message
        admin.create(refused[1][1], dryRun="All")  # others may
    finally:
        operator.close()
        admin.delete(binding)
        admin.delete(policy)

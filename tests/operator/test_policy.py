"""Tests that the policies in docs/operations/privileges.md accept intended requests and reject bypasses."""

import copy
from contextlib import contextmanager
from dataclasses import replace

import pytest
import yaml

from e2e.cluster.kube import ApiError
from tests.operator.samples import SETTINGS, child, make, observe, resource
from tests.operator.test_crd import changed
from tests.operator.test_platform_docs import DOCS, blocks
from tools import crd

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
    ("only our own adapters", {"model": HUB, "lora": {"adapters": [{"name": "a", "uri": "hf://other/adapter"}]}}),
    ("a service stays inside", {"service": {"type": "LoadBalancer"}}),
    ("a service stays inside", {"service": {"type": "NodePort"}}),
    ("of the runtime's other flags", {"engine": {"extraArgs": ["--max-queue", "5"]}}),
    ("of the runtime's other flags", {"engine": {"extraArgs": ["--flag-of-tomorrow=/proc/self/environ"]}}),
    ("of the runtime's other flags", {"engine": {"extraArgs": ["--max-queue=5", "--chat-templ=/proc/self/environ"]}}),
)


def documented(name):
    """Returns a policy and its binding, as on the page."""
    found = [list(yaml.safe_load_all(block)) for block in blocks(DOCS / "privileges.md", "yaml")]
    return next(pair for pair in found if pair[0].get("metadata", {}).get("name") == name)


@pytest.fixture(autouse=True)
def kind(admin):
    """Installs the CRD. The API server validates policies against its schema, and must accept the kind as an owner."""
    admin.define(crd.crd())


@pytest.fixture
def guarded(admin, namespace):
    """Yields a namespace to which the policy applies. The binding does not affect namespaces of other tests."""
    policy, binding = documented("unmask-no-escape")
    labels = {"kubernetes.io/metadata.name": namespace}
    binding["spec"]["matchResources"]["namespaceSelector"] = {"matchLabels": labels}
    policy["metadata"]["name"] = binding["metadata"]["name"] = binding["spec"]["policyName"] = namespace
    admin.apply(policy, fieldValidation="Strict")
    admin.apply(binding, fieldValidation="Strict")

    def holds():
        try:
            cache(admin, namespace, REFUSED[0][1])
        except ApiError as error:
            return "platform team" in error.message
        return False

    admin.wait("the policy", holds)
    yield namespace
    admin.delete(binding)
    admin.delete(policy)


def cache(admin, namespace, change):
    obj = changed(change)
    obj["metadata"]["namespace"] = namespace
    return admin.create(obj, fieldValidation="Strict", dryRun="All")


def test_the_example_policy_rejects_specs_that_bypass_its_restrictions(admin, guarded):
    for change in ALLOWED:
        cache(admin, guarded, change)
    for text, change in REFUSED:
        with pytest.raises(ApiError) as caught:
            cache(admin, guarded, change)
        assert text in caught.value.message, change


@contextmanager
def as_operator(api_server, admin, namespace, name, kind, refused):
    """Yields a client with the operator's account and all permissions for `kind`, under the page's policy `name`.

    Asserts that the policy rejects the objects in `refused`, pairs of a part of the error message and an object, and
    accepts them from other accounts.
    """
    policy, binding = documented(name)
    account = f"system:serviceaccount:{namespace}:unmask-operator"
    condition = policy["spec"]["matchConditions"][0]
    assert "'system:serviceaccount:unmask-system:unmask-operator'" in condition["expression"]
    condition["expression"] = f"request.userInfo.username == '{account}'"
    own = policy["metadata"]["name"] = binding["metadata"]["name"] = f"{namespace}-{name}"
    binding["spec"]["policyName"] = own
    group = policy["spec"]["matchConstraints"]["resourceRules"][0]["apiGroups"]
    about, rbac = {"metadata": {"name": kind, "namespace": namespace}}, "rbac.authorization.k8s.io"
    owner = {"apiGroups": ["*"], "resources": ["diffusionlmservices/finalizers"], "verbs": ["update"]}
    rules = [{"apiGroups": group, "resources": [kind], "verbs": ["*"]}, owner]
    admin.create({"apiVersion": f"{rbac}/v1", "kind": "Role", **about, "rules": rules})
    subject = {"kind": "ServiceAccount", "name": "unmask-operator", "namespace": namespace}
    role = {"apiGroup": rbac, "kind": "Role", "name": kind}
    admin.create({"apiVersion": f"{rbac}/v1", "kind": "RoleBinding", **about, "roleRef": role, "subjects": [subject]})
    operator = api_server.admin(user=account)
    text, bad = refused[0]

    def holds():
        try:
            operator.create(bad, dryRun="All")
        except ApiError as error:
            return text in error.message
        return False

    admin.apply(policy, fieldValidation="Strict")
    admin.apply(binding, fieldValidation="Strict")
    try:
        admin.wait("the policy", holds)
        for text, bad in refused:
            with pytest.raises(ApiError) as caught:
                operator.create(bad, dryRun="All")
            assert text in caught.value.message
            admin.create(bad, dryRun="All")  # other accounts may create it
        yield operator
    finally:
        operator.close()
        admin.delete(binding)
        admin.delete(policy)


def rendered(kind, namespace, settings=SETTINGS, **spec):
    spec = {"image": "registry.example.com/team/unmask-runtime:0.1.0", **spec}
    found = copy.deepcopy(child(make(observe(resource(**spec)), settings), kind))
    found["metadata"]["namespace"] = namespace
    return found


def test_the_policy_allows_the_operator_to_run_only_engines(api_server, admin, namespace):
    engine = rendered("Deployment", namespace)
    trusting = rendered("Deployment", namespace, replace(SETTINGS, ca_config_map="authorities"))
    (trust,) = trusting["spec"]["template"]["spec"]["initContainers"]
    main = engine["spec"]["template"]["spec"]["containers"][0]

    def changed_by(**members):
        other = copy.deepcopy(engine)
        other["spec"]["template"]["spec"] |= members
        return other

    others = [{"name": "tmp", "mountPath": "/etc/others"}]
    refused = (
        ("under their own ServiceAccount", changed_by(serviceAccountName="admin")),
        ("the runtime's image", changed_by(containers=[{**main, "image": "elsewhere/miner:1"}])),
        ("the runtime's image", changed_by(containers=[{**main, "command": ["sh"]}])),
        ("before an engine", changed_by(initContainers=[{**trust, "image": "elsewhere/miner:1", "volumeMounts": []}])),
        ("before an engine", changed_by(initContainers=[{"name": "first", "image": main["image"]}])),
        (
            "before an engine",
            changed_by(initContainers=[{**trust, "volumeMounts": others}]),
        ),
    )
    with as_operator(api_server, admin, namespace, "unmask-operator-runs-engines", "deployments", refused) as operator:
        operator.create(engine, dryRun="All")
        operator.create(trusting, dryRun="All")


def test_the_policy_allows_the_operator_to_write_only_config_maps_of_commits_and_adapters(api_server, admin, namespace):
    record = rendered("ConfigMap", namespace, model=HUB)
    adapters = rendered("ConfigMap", namespace, lora={"adapters": [{"name": "a", "uri": "pvc://tuned/a"}]})
    (key,) = record["data"]
    theirs = {**record, "metadata": {"name": "other-model", "namespace": namespace}}
    refused = (
        ("of ConfigMaps the operator writes", theirs),
        ("of ConfigMaps the operator writes", {**record, "metadata": {**record["metadata"], "name": "authorities"}}),
        ("records commits", {**record, "data": {key: "-of-another@main"}}),
        ("records commits", {**record, "data": {"ca.crt": ""}}),
        ("records commits", {**record, "binaryData": {"ca.crt": "YQ=="}}),
        ("records commits", {**adapters, "data": {"a": "/etc/unmask"}}),
        ("records commits", {**adapters, "data": {"a": "hf://other/adapter"}}),
    )
    with as_operator(
        api_server, admin, namespace, "unmask-operator-records-commits", "configmaps", refused
    ) as operator:
        admin.create(theirs)
        for act in (
            lambda: operator.patch(theirs, {"metadata": {"ownerReferences": record["metadata"]["ownerReferences"]}}),
            lambda: operator.delete(theirs),
        ):
            with pytest.raises(ApiError) as caught:
                act()
            assert "of ConfigMaps the operator writes" in caught.value.message
        operator.create(adapters)
        operator.create(record)
        operator.patch(record, {"data": {key: f"@{'a' * 40}"}})
        operator.delete(record)

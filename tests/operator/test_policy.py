"""Tests that the policies in docs/operations/privileges.md accept intended requests and reject bypasses."""

import copy
from contextlib import contextmanager
from dataclasses import replace

import pytest
import yaml

from e2e.cluster.kube import ApiError
from tests.layout.pages import code
from tests.operator.crd_cases import changed
from tests.operator.samples import SETTINGS, child, make, observe, resource
from tools import crd

pytestmark = pytest.mark.cluster

HUB = {"uri": "hf://my-org/model"}
IMAGE = "registry.example.com/team/runtime:1"
ALLOWED = (
    {},
    {"model": HUB, "image": IMAGE, "service": {"port": 81}},
    {"model": {**HUB, "revision": "a" * 40, "tokenSecretRef": {"name": "hub", "key": "token"}}, "replicas": 8},
    {"auth": {"apiKeySecretRef": {"name": "engine-keys", "key": "keys"}}, "autoscaling": {"maxReplicas": 8}},
    {"engine": {"maxModelLen": 64, "extraArgs": ["--max-queue=5", "--cors-allow-origins=https://a.example"]}},
)
REFUSED = (
    ("podTemplate is for the platform team", {"podTemplate": {"spec": {}}}),
    ("image must come from", {"image": "elsewhere/runtime:1"}),
    *(("only our own models", {"model": {"uri": uri}}) for uri in ("hf://other/model", "pvc://claim")),
    ("only our own adapters", {"model": HUB, "lora": {"adapters": [{"name": "a", "uri": "hf://other/adapter"}]}}),
    ("a revision is a commit", {"model": {**HUB, "revision": "refs/pr/7"}}),
    ("a revision is a commit", {"model": HUB, "lora": {"adapters": [{"name": "a", **HUB, "revision": "refs/pr/7"}]}}),
    *(("labels and annotations", {name: {"team": "x"}}) for name in ("commonLabels", "commonAnnotations")),
    *(("labels and annotations", {name: {"annotations": {"a": "b"}}}) for name in ("serviceAccount", "service")),
    ("of Secrets, hub", {"model": {**HUB, "tokenSecretRef": {"name": "other", "key": "token"}}}),
    ("of Secrets, hub", {"auth": {"apiKeySecretRef": {"name": "other", "key": "keys"}}}),
    ("claims are for", {"model": HUB, "lora": {"claimNames": ["any"]}}),
    *(("at most 8 replicas", change) for change in ({"replicas": 9}, {"autoscaling": {"maxReplicas": 9}})),
    *(("a service stays inside", {"service": {"type": kind}}) for kind in ("LoadBalancer", "NodePort")),
    ("of the runtime's other flags", {"engine": {"extraArgs": ["--max-queue", "5"]}}),
    ("of the runtime's other flags", {"engine": {"extraArgs": ["--max-queue=5", "--flag-of-tomorrow=/x"]}}),
)


def documented(name):
    """Returns a policy and its binding, as on the page."""
    found = [list(yaml.safe_load_all(block)) for block in code("docs/operations/privileges.md", "yaml")]
    return next(pair for pair in found if pair[0].get("metadata", {}).get("name") == name)


def message(write, *arguments, **query):
    """Returns the message of a refused write; "" if it is accepted."""
    try:
        write(*arguments, **query)
    except ApiError as error:
        return error.message
    return ""


@contextmanager
def policy(admin, documents, namespace, holds):
    """Installs a policy and its binding for this namespace, until the end of the block."""
    made, binding = documents
    made["metadata"]["name"] = binding["metadata"]["name"] = binding["spec"]["policyName"] = namespace
    selector = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    binding["spec"].setdefault("matchResources", {})["namespaceSelector"] = selector
    try:
        for document in documents:
            admin.apply(document, fieldValidation="Strict")
        admin.wait("the policy", holds)
        yield
    finally:
        admin.delete(binding)
        admin.delete(made)


@pytest.fixture(autouse=True)
def kind(admin):
    """Installs the CRD. The API server validates policies against its schema, and must accept the kind as an owner."""
    admin.define(crd.crd())


def test_the_example_policy_rejects_specs_that_bypass_its_restrictions(admin, namespace):
    def refusal(change):
        obj = changed(change)
        obj["metadata"]["namespace"] = namespace
        return message(admin.create, obj, fieldValidation="Strict", dryRun="All")

    with policy(admin, documented("unmask-no-escape"), namespace, lambda: "platform team" in refusal(REFUSED[0][1])):
        assert [refusal(change) for change in ALLOWED] == [""] * len(ALLOWED)
        for text, change in REFUSED:
            assert text in refusal(change), change


@contextmanager
def operators_policy(admin, namespace, name, refused):
    """Applies the page's policy `name`, which is about the operator's account, to every account in the namespace.

    Asserts that it rejects the objects in `refused`, pairs of a part of the error message and an object.
    """
    documents = documented(name)
    (condition,) = documents[0]["spec"]["matchConditions"]
    assert condition["expression"].endswith("== 'system:serviceaccount:unmask-system:unmask-operator'")
    condition["expression"] = "true"

    def refusal(bad):
        return message(admin.create, bad, dryRun="All")

    with policy(admin, documents, namespace, lambda: refused[0][0] in refusal(refused[0][1])):
        for text, bad in refused:
            assert text in refusal(bad)
        yield


def rendered(kind, namespace, settings=SETTINGS, **spec):
    found = copy.deepcopy(child(make(observe(resource(**{"image": IMAGE, **spec})), settings), kind))
    found["metadata"]["namespace"] = namespace
    return found


def test_the_policy_allows_the_operator_to_run_only_engines(admin, namespace):
    image = "registry.example.com/team/unmask-runtime:0.1.0"
    engine = rendered("Deployment", namespace, image=image)
    trusting = rendered("Deployment", namespace, replace(SETTINGS, ca_config_map="authorities"), image=image)
    (trust,) = trusting["spec"]["template"]["spec"]["initContainers"]
    main = engine["spec"]["template"]["spec"]["containers"][0]
    others = {**trust, "volumeMounts": [{"name": "tmp", "mountPath": "/etc/others"}]}

    def changed_by(**members):
        other = copy.deepcopy(engine)
        other["spec"]["template"]["spec"] |= members
        return other

    refused = (
        ("under their own ServiceAccount", changed_by(serviceAccountName="admin")),
        ("the runtime's image", changed_by(containers=[{**main, "image": "elsewhere/miner:1"}])),
        *(("the runtime's image", changed_by(containers=[{**main, **change}]))
          for change in ({"command": ["sh"]}, {"image": "registry.example.com/team/unmask-runtime-other:1"},
                         {"lifecycle": {"postStart": {"exec": {"command": ["true"]}}}},
                         {"livenessProbe": {"exec": {"command": ["true"]}}})),
        ("that run no code", changed_by(containers=[{**main, "args": ["--plugin=/tmp/x.py"]}])),
        ("that run no code", changed_by(containers=[{**main, "env": [{"name": "PYTHONPATH", "value": "/tmp"}]}])),
        ("no token", changed_by(automountServiceAccountToken=True)),
        *(("no token", changed_by(volumes=[*engine["spec"]["template"]["spec"]["volumes"], {"name": "x", **source}]))
          for source in ({"hostPath": {"path": "/"}}, {"secret": {"secretName": "other"}})),
        ("before an engine", changed_by(initContainers=[{**trust, "image": "elsewhere/miner:1", "volumeMounts": []}])),
        ("before an engine", changed_by(initContainers=[{"name": "first", "image": main["image"]}])),
        ("before an engine", changed_by(initContainers=[others])),
    )  # fmt: skip
    with operators_policy(admin, namespace, "unmask-operator-runs-engines", refused):
        admin.create(engine, dryRun="All")
        admin.create(trusting, dryRun="All")


def test_the_policy_allows_the_operator_to_write_only_config_maps_of_commits_and_adapters(admin, namespace):
    record = rendered("ConfigMap", namespace, model=HUB)
    adapters = rendered("ConfigMap", namespace, lora={"adapters": [{"name": "a", "uri": "pvc://tuned/a"}]})
    (key,) = record["data"]
    theirs = {**record, "metadata": {"name": "other-model", "namespace": namespace}}
    foreign = "of ConfigMaps the operator writes"
    contents = [
        *({**record, "data": data} for data in ({key: "-of-another@main"}, {"ca.crt": ""})),
        {**record, "binaryData": {"ca.crt": "YQ=="}},
        *({**adapters, "data": {"a": uri}} for uri in ("/etc/unmask", "hf://other/adapter")),
    ]
    refused = (
        (foreign, theirs),
        (foreign, {**record, "metadata": {**record["metadata"], "name": "authorities"}}),
        *(("records commits", content) for content in contents),
    )
    admin.create(theirs)
    with operators_policy(admin, namespace, "unmask-operator-records-commits", refused):
        owners = {"metadata": {"ownerReferences": record["metadata"]["ownerReferences"]}}
        assert foreign in message(admin.patch, theirs, owners)
        assert foreign in message(admin.delete, theirs)
        admin.create(adapters)
        admin.create(record)
        admin.patch(record, {"data": {key: f"@{'a' * 40}"}})
        admin.delete(record)

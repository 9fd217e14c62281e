"""Tests that the documentation for platform engineers agrees with the operator, the chart and the Makefile."""

import json
import re
from pathlib import Path

import pytest
import yaml

from tests.layout.pages import code
from tools.status import Status
from unmask_operator.api import Spec, parse
from unmask_operator.objects import ADOPT, GROUP, KIND, PLURAL, RESTARTED_AT, ROLE_LABEL, SERVICE_LABEL
from unmask_operator.render.labels import PORT, labels
from unmask_operator.status import CONDITIONS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs" / "operations"
NAMES = (
    *("install", "privileges", "security", "rolling-upgrade", "autoscaling", "troubleshooting", "nodes-and-identities"),
    *("argo-cd", "flux", "backup-restore", "gateway", "several-nodes", "scheduling", "tenants", "capacity"),
)
PAGES = [*(DOCS / f"{name}.md" for name in NAMES), ROOT / "docs/get-started/kubernetes.md"]
OPERATOR = ROOT / "operator" / "unmask_operator"
VALUES = yaml.safe_load((ROOT / "charts/unmask-operator/values.yaml").read_text(encoding="utf-8"))
FOREIGN = {
    *("client.responses", "config.json", "ca.crt", "resource.exclusions", "runtime.demo"),
    *("install.crds", "upgrade.crds"),  # in a HelmRelease of Flux
    "unmask.plugins",  # a group of entry points
}
PAGE = pytest.mark.parametrize("page", [*PAGES, ROOT / "README.md"], ids=lambda page: page.stem)


def prose(page):
    return re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)


def field_of(model, path):
    """Returns whether `path` leads to a field of a typed section. Any path below a free-form map does."""
    head, *rest = path
    by_alias = {field.alias or name: field for name, field in model.model_fields.items()}
    if head not in by_alias:
        return False
    if not rest:
        return True
    inner = re.findall(r"unmask_operator\.api\.[\w.]+", str(by_alias[head].annotation))
    if not inner:
        return True
    module, _, name = inner[0].rpartition(".")
    return field_of(getattr(__import__(module, fromlist=[name]), name), rest)


def value_of(path):
    node = VALUES
    for part in path:
        if not isinstance(node, dict) or (node and part not in node):
            return False
        node = node.get(part)
    return True


@PAGE
def test_services_and_patches_on_a_page_are_valid(page):
    documents = [doc for block in code(page, "yaml") for doc in yaml.safe_load_all(block)]
    services = [doc for doc in documents if doc.get("kind") == KIND]
    for block in code(page, "sh"):
        for patch in re.findall(r"kubectl patch dlms \S+ --type merge -p '(.*?)'", block):
            spec = {"model": {"uri": "demo://"}} | json.loads(patch)["spec"]
            services.append({"metadata": {"name": "demo"}, "spec": spec})
    assert [service for service in services if parse(service).ignored] == []


@PAGE
def test_fields_values_files_and_commands_that_a_page_names_exist(page):
    for name in re.findall(r"`([a-z][A-Za-z]+(?:\.[a-z][A-Za-z]+)+)(?:[:=][^`]*)?`", prose(page)):
        path = name.split(".")
        known = field_of(Spec, path) or value_of(path)
        known |= path[0] == "spec" and field_of(Spec, path[1:])
        known |= path[0] == "status" and field_of(Status, path[1:])
        assert known or name in FOREIGN, name
    for path in re.findall(r"(?<![\w/])(?:examples|charts)/[\w/.-]*\w", page.read_text(encoding="utf-8")):
        assert (ROOT / path).exists(), path
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for block in code(page, "sh"):
        assert set(re.findall(r"^make ([a-z0-9-]+)", block, re.MULTILINE)) <= targets
        for name in re.findall(r"--set(?:-string)? ([\w.]+)=", block):
            assert value_of(name.split(".")), name
        for name in re.findall(r"explain dlms\.spec\.([\w.]+)", block):
            assert field_of(Spec, name.split(".")), name
        assert set(re.findall(r"kubectl delete crd (\S+)", block)) <= {f"{PLURAL}.{GROUP}"}
        assert set(re.findall(r"serving\.unmask\.dev/\w+", block)) <= {ADOPT, RESTARTED_AT, ROLE_LABEL, SERVICE_LABEL}


def test_every_reason_that_a_condition_can_have_is_explained():
    text = (DOCS / "troubleshooting.md").read_text(encoding="utf-8")
    sources = [*(OPERATOR / "status").rglob("*.py"), OPERATOR / "plan" / "plan.py"]
    source = "\n".join(path.read_text(encoding="utf-8") for path in sources)
    reasons = set(re.findall(r'\b(?:false|unknown)\(\s*"(\w+)"', source))
    reasons |= set(re.findall(r'\bProblem\(\s*"\w+",\s*"(\w+)"', source))
    assert {reason for reason in reasons if f"`{reason}`" not in text} == set()


def test_argo_cds_health_check_uses_existing_conditions_and_reasons():
    (check,) = (block for block in code(DOCS / "argo-cd.md", "yaml") if "local health" in block)
    asked = set(re.findall(r'holds\["(\w+)"\]', check)) | set(re.findall(r'condition\.type == "(\w+)"', check))
    assert asked == {"Accepted", "Ready", "Available", "RolloutComplete"} <= {*CONDITIONS, "Ready"}
    explained = (DOCS / "troubleshooting.md").read_text(encoding="utf-8")
    for reason in re.findall(r"(\w+) = true", check) + re.findall(r'reason == "(\w+)"', check):
        assert f"`{reason}`" in explained


def test_a_strict_mesh_lets_in_what_the_operator_reads_and_no_more():
    objects = [obj for block in code(DOCS / "security.md", "yaml") for obj in yaml.safe_load_all(block)]
    by_kind = {obj.get("kind"): obj.get("spec") for obj in objects if isinstance(obj, dict)}
    peers, policy = by_kind["PeerAuthentication"], by_kind["AuthorizationPolicy"]
    port = str(PORT)
    assert (peers["mtls"]["mode"], peers["portLevelMtls"]) == ("STRICT", {port: {"mode": "PERMISSIVE"}})
    for spec in (peers, policy):
        assert spec["selector"]["matchLabels"].items() <= labels("demo").items()
    sources = "".join(file.read_text() for file in OPERATOR.rglob("*.py"))
    asked = re.findall(r'get_text\(session, address, "(.*?)"', sources)
    (unauthenticated,) = [rule["to"] for rule in policy["rules"] if "from" not in rule]
    assert unauthenticated == [{"operation": {"ports": [port], "paths": sorted(asked)}}]

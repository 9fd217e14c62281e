"""Tests that the Dockerfile puts exactly the necessary files and packages into an image."""

import json
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from tools import licenses, sbom

ROOT = Path(__file__).parents[2]
EACH = pytest.mark.parametrize("name", ["operator", "runtime"])
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
# The checkout must not be importable, although it is installed. Modules that Python loads at startup do not count.
IMPORT_ALL = """
import sys
sys.meta_path = [finder for finder in sys.meta_path if "editable" not in str(finder)]
sys.modules.update(dict.fromkeys(sys.argv[1:]))  # a module that is None cannot be imported
before = set(sys.modules)
import importlib, pkgutil, runtime.config, unmask_operator
for module in pkgutil.walk_packages(unmask_operator.__path__, "unmask_operator."):
    importlib.import_module(module.name)
print(*sorted({name.split(".")[0] for name in set(sys.modules) - before}))
"""


def pins(name):
    """Returns the hashes of each package of a constraints file, by name and version."""
    text = (ROOT / "constraints" / f"{name}.txt").read_text(encoding="utf-8")
    entries = re.findall(r"^([a-z0-9][\w.-]*)==(\S+)([^\\\n]*)\\\n((?:    --hash=\S+ ?\\?\n)+)", text, re.MULTILINE)
    return {(n, version): set(re.findall(r"sha256:\w+", hashes)) for n, version, _, hashes in entries}


def stage(name):
    return re.search(rf"^FROM \S+ AS {name}\n(.*?)(?=^FROM |\Z)", DOCKERFILE, re.MULTILINE | re.DOTALL)[1]


def copied(text):
    """Yields pairs of a source in the repository that a stage copies, and its target."""
    for line in re.findall(r"^COPY (?!--from)(.+)$", text, re.MULTILINE):
        *sources, target = line.split()
        yield from ((source, target) for source in sources)


@EACH
def test_an_images_packages_are_those_of_the_lock_that_its_part_of_the_project_needs(name):
    lock, image = pins("lock"), pins(name)
    assert {pin: hashes for pin, hashes in image.items() if lock.get(pin) != hashes} == {}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    needed = {"runtime": project["dependencies"] + extras["client"], "operator": extras["operator"]}[name]
    required = {re.match(r"[\w.-]+", requirement)[0].replace("_", "-") for requirement in needed}
    assert required <= {pin for pin, _ in image}, "run make lock"


def test_no_image_contains_packages_for_development_and_the_operators_none_of_the_runtime():
    runtime, operator = ({name for name, _ in pins(image)} for image in ("runtime", "operator"))
    assert not (runtime | operator) & {"pytest", "mypy", "ruff", "pre-commit", "hypothesis", "uv"}
    heavy = {"torch", "triton", "openai", "transformers", "sentencepiece", "tiktoken", "protobuf"}
    assert (heavy & operator, heavy & runtime) == (set(), heavy)


def test_copied_files_exist_and_are_in_the_build_context():
    allowed = re.findall(r"^!(.+)$", (ROOT / ".dockerignore").read_text(encoding="utf-8"), re.MULTILINE)
    for source, _ in copied(DOCKERFILE):
        assert (ROOT / source).exists(), source
        assert any(source == path or source.startswith(f"{path}/") for path in allowed), source


def test_the_operators_files_and_packages_are_all_it_imports(tmp_path):
    """Imports a copy of the image's app folder where only the pinned packages can be imported.

    Optional packages must not be found, because libraries import them if they exist, as urllib3 imports PySocks.
    """
    app = "/opt/unmask/app/"
    for source, target in copied(stage("operator-packages")):
        if target.startswith(app):
            inside = tmp_path / target.removeprefix(app)
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, inside)
            else:
                inside.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / source, inside)
    owners = packages_distributions()
    pinned = {name for name, _ in pins("operator")} | {"unmask"}
    owners = {module: {name.lower().replace("_", "-") for name in names} for module, names in owners.items()}
    foreign = sorted(module for module, names in owners.items() if module.isidentifier() and not names & pinned)
    command, environment = [sys.executable, "-c", IMPORT_ALL, *foreign], {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    loaded = {owner for name in done.stdout.split() for owner in owners.get(name, ())}
    assert {"kopf", "kubernetes", "aiohttp", "pydantic"} <= loaded <= pinned


@EACH
def test_images_run_as_a_numeric_user_and_have_labels(name):
    text = stage(name)
    assert re.search(r"^USER 65532:65532$", text, re.MULTILINE)
    assert "'unmask:x:65532:65532:" in text
    assert "USER=unmask LOGNAME=unmask" in text  # libraries look up the user name, and the cluster may set any uid
    for label in ("title", "description", "version", "revision", "licenses"):
        assert f"org.opencontainers.image.{label}=" in text
    entry = re.search(r"^ENTRYPOINT (.+)$", text, re.MULTILINE)[1]
    assert entry == f'["python", "-m", "{ {"operator": "unmask_operator", "runtime": "runtime.server"}[name] }"]'


UV = """#!{python}
import json, sys, tomllib
if sys.argv[1:] == ["--version"]: sys.exit(print("uv {version}"))
assert sys.argv[1:] == ["export", "--quiet", "--format", "cyclonedx1.5"]
project = tomllib.load(open("pyproject.toml", "rb"))["project"]
pins = [pin.partition(" ;")[0].split("==") for pin in project["dependencies"]][{skipped}:]
print(json.dumps({{"components": [{{"name": name, "version": version}} for name, version in pins]}}))
"""


def fake_uv(folder, skipped=0):
    """Writes a uv that needs no index and omits `skipped` packages, and returns its path."""
    version = re.search(r"^UV_VERSION := (\S+)", (ROOT / "Makefile").read_text(), re.MULTILINE)[1]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "uv"
    path.write_text(UV.format(python=sys.executable, version=version, skipped=skipped))
    path.chmod(0o755)
    return path


def test_a_bill_of_materials_names_what_the_constraints_pin(tmp_path):
    with pytest.raises(ValueError, match=r"not that of constraints/operator.txt: aiohappyeyeballs "):
        sbom.write(fake_uv(tmp_path, skipped=1), "operator", "0.1.0", tmp_path / "bill.json")
    for name in ("operator", "runtime"):
        sbom.write(fake_uv(tmp_path), name, "0.1.0", tmp_path / "bill.json")
        listed = json.loads((tmp_path / "bill.json").read_text())["components"]
        assert {(part["name"], part["version"]) for part in listed} == pins(name).keys()


def test_the_license_is_the_same_everywhere():
    """Checks the file, the package's metadata and the chart. Images also have the licenses of their packages."""
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert re.match(r"\s*Apache License\n\s*Version 2\.0, January 2004\n", text)
    assert "END OF TERMS AND CONDITIONS" in text
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    labels = re.findall(r'org\.opencontainers\.image\.licenses="([^"]+)"', DOCKERFILE)
    (chart,) = re.findall(r"licenses: (\S+)", (ROOT / "charts/unmask-operator/Chart.yaml").read_text(encoding="utf-8"))
    assert [project["license"], chart] == ["Apache-2.0"] * 2
    assert labels == [licenses.expression("operator"), licenses.expression("runtime")]
    assert project["license-files"] == ["LICENSE"]

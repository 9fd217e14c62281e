"""Tests that every example is a valid resource, and that the client Job's script gets answers from a server."""

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import yaml

from runtime import __version__
from tests.server.harness import serving
from unmask_operator.api import parse
from unmask_operator.render.arguments import engine_arguments
from unmask_operator.settings import Settings

FOLDER = Path(__file__).parents[2] / "examples"


def documents(name):
    return list(yaml.safe_load_all((FOLDER / name).read_text(encoding="utf-8")))


def services(*names):
    return [d for name in names for d in documents(name) if d["kind"] == "DiffusionLMService"]


def name(obj):
    return obj["metadata"]["name"]


NAMES = sorted(path.name for path in FOLDER.glob("*.yaml"))


def test_the_expected_examples_exist():
    expected = {"llada2-service", "demo-service", "autoscaled", "private-model", "hardened", "client-job"}
    expected |= {"llada2-flash", "adapters"}
    assert expected <= {name.removesuffix(".yaml") for name in NAMES}


@pytest.mark.parametrize("service", services(*NAMES), ids=name)
def test_each_service_is_valid(service):
    assert parse(service).ignored == ()


def test_names_are_unique_so_that_all_can_be_applied_together():
    names = [service["metadata"]["name"] for service in services(*NAMES)]
    assert len(set(names)) == len(names)


def test_the_real_model_takes_about_twelve_lines():
    lines = (FOLDER / "llada2-service.yaml").read_text(encoding="utf-8").splitlines()
    assert len([line for line in lines if not line.startswith("#")]) <= 14


def test_the_demo_runs_on_a_laptop():
    (demo,) = services("demo-service.yaml")
    assert parse(demo).spec.gpu is None
    assert demo["spec"]["resources"]["limits"]["memory"] == "2Gi"


def on_this_machine(service):
    """Returns the engine's arguments of an example, without those that depend on its pod or make it wait."""
    arguments = engine_arguments(parse(service), Settings())
    left_out = ("--drain", "--host", "--port", "--api-key-file", "--lora-config")
    return [argument for argument in arguments if not argument.startswith(left_out)]


@pytest.mark.matrix
@pytest.mark.parametrize("service", [s for s in services(*NAMES) if s["spec"]["model"]["uri"] == "demo://"], ids=name)
def test_each_demo_example_starts_in_its_memory(service):
    with serving(*on_this_machine(service)) as server:
        peaks = [
            psutil.Process(server.process.pid).memory_info().rss,
            *(b.memory_info().rss for b in server.backends()),
        ]
    assert sum(peaks) < 1 << 30  # the examples request this memory


@pytest.mark.matrix
def test_the_client_jobs_script_gets_the_answer_with_and_without_streaming():
    (job,) = documents("client-job.yaml")
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert container["image"] == f"unmask-runtime:{__version__}"
    with serving(*on_this_machine(*services("demo-service.yaml"))) as server:
        env = {entry["name"]: entry["value"] for entry in container["env"]}
        assert env["OPENAI_BASE_URL"] == "http://demo/v1"
        env["OPENAI_BASE_URL"] = f"{server.url}/v1"
        command = [sys.executable if word == "python" else word for word in container["command"]]
        done = subprocess.run([*command, *container["args"]], env=os.environ | env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["12 + 30 = 42."] * 2

"""Tests that every example is a valid resource, and that the demo runs on a laptop."""

from pathlib import Path

import psutil
import pytest
import yaml

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


@pytest.mark.parametrize("service", services(*NAMES), ids=name)
def test_each_service_is_valid(service):
    assert parse(service).ignored == ()


@pytest.mark.matrix
def test_the_demo_starts_in_the_memory_that_it_requests():
    (demo,) = services("demo-service.yaml")
    left_out = ("--drain", "--host", "--port")  # depend on the pod, or make the test wait
    arguments = [word for word in engine_arguments(parse(demo), Settings()) if not word.startswith(left_out)]
    with serving(*arguments) as server:
        processes = [psutil.Process(server.process.pid), *server.backends()]
        used = sum(process.memory_info().rss for process in processes)
    assert demo["spec"]["resources"]["requests"]["memory"] == "1Gi"
    assert used < 1 << 30

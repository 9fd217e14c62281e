"""Tests that every example is a valid resource, and that the demo runs on a laptop."""

import psutil
import pytest

from tests.operator.snapshot import examples
from tests.server.harness import serving
from unmask_operator.api import parse
from unmask_operator.render.arguments import engine_arguments
from unmask_operator.settings import Settings

EXAMPLES = examples()


@pytest.mark.parametrize("name", EXAMPLES)
def test_each_service_is_valid(name):
    assert parse(EXAMPLES[name]).ignored == ()


@pytest.mark.matrix
def test_the_demo_starts_in_the_memory_that_it_requests():
    demo = EXAMPLES["demo-service"]
    left_out = ("--drain", "--host", "--port")  # depend on the pod, or make the test wait
    arguments = [word for word in engine_arguments(parse(demo), Settings()) if not word.startswith(left_out)]
    with serving(*arguments) as server:
        processes = [psutil.Process(server.process.pid), *server.backends()]
        used = sum(process.memory_info().rss for process in processes)
    assert demo["spec"]["resources"]["requests"]["memory"] == "1Gi"
    assert used < 1 << 30

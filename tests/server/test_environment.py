"""Tests of process-wide settings: the server makes them, and the import of its modules does not."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from runtime.config.flags import SERVER_COMPILE_CACHE
from runtime.server.env import backend_environment
from tests.wait import TIMEOUT

pytestmark = pytest.mark.processes

VARIABLE = "TOKENIZERS_PARALLELISM"
IMPORTED = f"""
import os, sys, runtime, runtime.tokenizer, runtime.tokenizer.tokenizer
assert sys.getswitchinterval() == 0.005
print(os.environ.get({VARIABLE!r}))
"""
SERVED = f"""
import os, sys
from runtime.config import ServerConfig
from runtime.server import launcher

def listen(host, port):
    assert "tokenizers" not in sys.modules
    assert sys.getswitchinterval() < 0.001
    print(os.environ.get({VARIABLE!r}))
    sys.exit()

launcher.listen = listen
launcher.run(ServerConfig())
"""


COMPILED = f"""
import contextlib, os, sys
from runtime.config import ServerConfig
from runtime.server import launcher

def serve(config, listener, directory, backend_command, clean_up):
    os.mkdir(os.environ[{SERVER_COMPILE_CACHE!r}])
    assert os.listdir(directory / "compiled") == []
    print(directory / "compiled")
    sys.exit()

launcher.listen = lambda host, port: contextlib.nullcontext()
launcher.Server = serve
launcher.run(ServerConfig())
"""


@pytest.mark.parametrize(
    ("program", "preset", "found"),
    [(IMPORTED, None, "None"), (SERVED, None, "false"), (SERVED, "true", "true")],
)
def test_only_the_server_keeps_the_tokenizers_library_to_one_thread(
    program: str, preset: str | None, found: str
) -> None:
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    if preset is not None:
        environment[VARIABLE] = preset
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=TIMEOUT
    )
    assert done.stdout.strip() == found, done.stderr


def test_the_server_removes_the_code_that_its_backends_compiled() -> None:
    """Backends end without a clean-up."""
    done = subprocess.run([sys.executable, "-c", COMPILED], capture_output=True, text=True, timeout=TIMEOUT)
    path = Path(done.stdout.strip())
    assert path.name == "compiled", done.stderr
    assert not path.parent.exists()


@pytest.mark.matrix
@pytest.mark.parametrize(("choice", "policy"), [(None, "PASSIVE"), ("active", "ACTIVE")])
def test_openmp_threads_wait_passively_unless_the_user_decides(choice: str | None, policy: str) -> None:
    """OpenMP prints the policy that it has read when torch loads it."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OMP_")}
    environment |= {"OMP_DISPLAY_ENV": "true"} | ({} if choice is None else {"OMP_WAIT_POLICY": choice})
    command = [sys.executable, "-c", "from runtime import LLM"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT)
    assert f"OMP_WAIT_POLICY = '{policy}'" in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("model", "variables", "inherited"),
    [
        ("/models/x", {"HF_TOKEN": "secret", "UNMASK_API_KEY": "secret"}, {"HF_TOKEN": None, "UNMASK_API_KEY": None}),
        ("hf://org/name", {"HF_TOKEN": "secret"}, {"HF_TOKEN": "secret"}),
        (None, {"HF_TOKEN": "secret"}, {"HF_TOKEN": None}),
        (None, {"UNMASK_KERNEL_CACHE": "/kernels"}, {"UNMASK_KERNEL_CACHE": "/kernels"}),
        (None, {SERVER_COMPILE_CACHE: "/compiled"}, {SERVER_COMPILE_CACHE: "/compiled"}),
        (None, {"OTEL_EXPORTER_OTLP_HEADERS": "secret"}, {"OTEL_EXPORTER_OTLP_HEADERS": None}),
        (None, {}, {"OMP_WAIT_POLICY": "PASSIVE"}),
        (None, {"OMP_WAIT_POLICY": "active"}, {"OMP_WAIT_POLICY": "active"}),
    ],
)
def test_a_backend_inherits_what_it_needs_and_no_secrets(
    monkeypatch: pytest.MonkeyPatch, model: str | None, variables: dict[str, str], inherited: dict[str, str | None]
) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    found = backend_environment(model)
    assert {name: found.get(name) for name in inherited} == inherited

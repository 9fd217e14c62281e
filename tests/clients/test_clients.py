"""Runs real clients against the demo server: `make clients` builds an environment for each, and runs its checks."""

import contextlib
import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.clients.catalogue import Client, clients
from tests.clients.conftest import KEY, Check, Servers, Tried
from tests.clients.environments import Missing, command, environment

CHECKPOINT = Path(__file__).parents[2] / "runtime" / "demo" / "checkpoint"  # for clients that count tokens themselves
SECONDS = 900  # for all checks of one client: clients that measure load start many processes
# Clients connect only to the server: no telemetry, no lists or models from a hub.
QUIET = {"DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
HOMES = ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME")  # empty: those below HOME
LOCAL = {"NO_PROXY": "127.0.0.1,localhost", "no_proxy": "127.0.0.1,localhost"}

pytestmark = [pytest.mark.clients, pytest.mark.timeout(2400)]


@pytest.mark.parametrize("client", clients(), ids=lambda client: client.name)
def test_client(client: Client, servers: Servers, tried: Tried, tmp_path: Path) -> None:
    server = servers.get(client.server)
    try:
        folder = environment(client)
        run, variables = command(client, folder)
    except Missing as missing:
        pytest.fail(str(missing))
    report = tmp_path / "report"
    report.touch()
    (home := tmp_path / "home").mkdir()
    variables |= {"UNMASK_CLIENT_SERVER": server.url, "UNMASK_CLIENT_KEY": KEY, "UNMASK_CLIENT_REPORT": str(report)}
    variables |= {
        "UNMASK_CLIENT_TOKENIZER": str(CHECKPOINT), "HOME": str(home), **dict.fromkeys(HOMES, ""),
        "OPENAI_API_KEY": KEY, **QUIET, **LOCAL,
    }  # fmt: skip
    began = time.monotonic()
    output = _output(run, variables, tmp_path)
    checks = [Check(**json.loads(line)) for line in report.read_text(encoding="utf-8").splitlines()]
    tried.runs.append((client, checks, time.monotonic() - began))
    wrong = "\n\n".join(f"{check.kind}: {check.name}\n{check.error}" for check in checks if check.error is not None)
    assert not wrong, f"{wrong}\n\n{output[-4000:]}"
    assert {check.kind for check in checks} == set(client.covers), output[-8000:]
    server.until_idle()


def _output(run: list[str], variables: dict[str, str], folder: Path) -> str:
    """Runs the client and returns its output. Kills all processes that it has started."""
    with (folder / "output").open("w+") as output:
        process = subprocess.Popen(
            run, cwd=folder, env=os.environ | variables, stdout=output, stderr=output, start_new_session=True
        )
        try:
            process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            output.write(f"\nnot done after {SECONDS} s\n")
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.seek(0)
        return output.read()

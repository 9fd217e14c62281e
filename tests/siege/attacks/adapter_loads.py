"""An attack by requests that load adapters of different content under many names."""

import asyncio
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from safetensors import safe_open
from safetensors.numpy import save_file

from tests.siege.meter import MB
from tests.siege.registry import attack, control
from tests.siege.server import ROOT
from tests.siege.target import Target

ROMAN = ROOT / "runtime" / "demo" / "adapters" / "roman"
RANK = 128  # an adapter of the demo model then takes 10 MB
ADAPTERS = 32
LIMIT_MB = 50
ALLOWANCE_MB = 100  # growth of the backend beside the adapters


@attack(
    "adapter-loads",
    f"{ADAPTERS} loads at once, of adapters of 10 MB, with a limit of {LIMIT_MB} MB",
    keyed=True,
    seconds=20,
    server_args=(
        "--max-loras", "2", "--max-lora-rank", str(RANK),
        "--lora-routes", "--lora-routes-memory-gb", str(LIMIT_MB / 1000),
    ),
    slowdown=2.0,
)  # fmt: skip
async def adapter_loads(target: Target) -> None:
    await _load(target, ADAPTERS)


@control("adapter-loads")
async def equal_adapters(target: Target) -> None:
    await _load(target, 1)


async def _load(target: Target, num_contents: int) -> None:
    """Loads `ADAPTERS` names in a loop. They share so many adapters."""
    (port,) = [c for c in psutil.net_connections("tcp") if c.status == "LISTEN" and c.laddr.port == target.port]
    backends = psutil.Process(port.pid).children(recursive=True)
    before = _rss_mb(backends)

    async def one(name: str, path: str) -> None:
        body: dict[str, Any] = {"lora_name": name, "lora_path": path}
        while target.on():
            await target.ask(target.post("/v1/load_lora_adapter", body))
            if _rss_mb(backends) - before > LIMIT_MB + ALLOWANCE_MB:
                target.says(f"the backend grew by more than {LIMIT_MB + ALLOWANCE_MB} MB")
            await target.pause(0.5)

    with tempfile.TemporaryDirectory() as directory:
        paths = [_write(Path(directory) / str(number), number) for number in range(num_contents)]
        await asyncio.gather(*(one(f"a{n}-of-{num_contents}", paths[n % num_contents]) for n in range(ADAPTERS)))


def _rss_mb(processes: list[psutil.Process]) -> float:
    return float(sum(process.memory_info().rss for process in processes)) / MB


def _write(directory: Path, number: int) -> str:
    """Writes an adapter that changes no answer: one matrix of each pair is random, the other zero."""
    random = np.random.default_rng(number)
    with safe_open(ROMAN / "adapter_model.safetensors", "np") as file:
        shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
    tensors = {
        name: random.standard_normal((RANK, shape[1])).astype(np.float16)
        if ".lora_A." in name
        else np.zeros((shape[0], RANK), np.float16)
        for name, shape in shapes.items()
    }
    directory.mkdir()
    save_file(tensors, directory / "adapter_model.safetensors")
    config = json.loads((ROMAN / "adapter_config.json").read_text()) | {"r": RANK}
    (directory / "adapter_config.json").write_text(json.dumps(config))
    return str(directory)

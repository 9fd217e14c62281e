"""Replicas whose ranks are all on this host."""

from __future__ import annotations

import torch

from runtime.config import EngineConfig
from runtime.distributed.executor import MultiprocExecutor
from runtime.distributed.gpu import check_devices
from runtime.distributed.rank_launcher import RANK_COMMAND, WorkerPlacement
from runtime.engine.engine import Engine
from runtime.engine.setup import LoadModel
from runtime.weights import load_model


def on_gpus(config: EngineConfig) -> bool:
    return config.device == "cuda" or (config.device is None and torch.cuda.is_available())


def local_executor(config: EngineConfig, command: tuple[str, ...] = RANK_COMMAND) -> MultiprocExecutor:
    """Starts the ranks on the first devices. Raises ConfigError if there are too few."""
    size, devices = config.tensor_parallel_size, None
    if on_gpus(config):
        devices = tuple(range(size))
        check_devices(devices, f"--tensor-parallel-size {size}")
        torch.cuda.set_device(0)
    return MultiprocExecutor(size, WorkerPlacement(devices, command=command), config.distributed_timeout_seconds)


def local_engine(
    config: EngineConfig, load: LoadModel = load_model, command: tuple[str, ...] = RANK_COMMAND
) -> tuple[Engine, MultiprocExecutor]:
    """Loads an engine; returns it and the executor of its ranks, which must be closed after it."""
    ranks = local_executor(config, command)
    try:
        return ranks.load(config, load=load), ranks
    except BaseException:
        ranks.close()
        raise

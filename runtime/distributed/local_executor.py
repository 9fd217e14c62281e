"""The ranks of a replica that is all on this host, and whether its devices suffice."""

from __future__ import annotations

import torch

from runtime.config import EngineConfig
from runtime.distributed.executor import Ranks
from runtime.distributed.rank_launcher import FOLLOW, Place
from runtime.engine.engine import Engine
from runtime.engine.setup import LoadModel
from runtime.errors import ConfigError
from runtime.weights import load_model


def on_gpus(config: EngineConfig) -> bool:
    return config.device == "cuda" or (config.device is None and torch.cuda.is_available())


def check_devices(devices: tuple[int, ...], flag: str) -> None:
    """ConfigError unless all of them are there."""
    there = torch.cuda.device_count()
    absent = [device for device in devices if device >= there]
    if absent:
        raise ConfigError(
            f"{flag}: GPU {absent[0]} is asked for, but only {there} are visible; lower --tensor-parallel-size, or "
            "--data-parallel-size, or give --device-ids that are there"
        )


def local_ranks(config: EngineConfig, command: tuple[str, ...] = FOLLOW) -> Ranks:
    """On the first devices. ConfigError if there are too few."""
    size, devices = config.tensor_parallel_size, None
    if on_gpus(config):
        devices = tuple(range(size))
        check_devices(devices, f"--tensor-parallel-size {size}")
        torch.cuda.set_device(0)
    return Ranks(size, Place(devices, command=command), config.distributed_timeout_seconds)


def local_engine(
    config: EngineConfig, load: LoadModel = load_model, command: tuple[str, ...] = FOLLOW
) -> tuple[Engine, Ranks]:
    """An engine, and the ranks that share its model with this process; they are to be closed after it."""
    ranks = local_ranks(config, command)
    try:
        return ranks.load(config, load=load), ranks
    except BaseException:
        ranks.close()
        raise

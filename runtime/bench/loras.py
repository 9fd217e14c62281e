"""Random LoRA adapters on the attention projections, for timings. They are assigned to requests in rotation."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch

from runtime.errors import ConfigError
from runtime.layers.layer_factory import LayerFactory
from runtime.layers.lora import LoRAConfig
from runtime.lora.adapter_checkpoint import Adapter, BaseModelInfo, LoRAPair
from runtime.lora.adapter_weights import LoRAWeights
from runtime.models.base import Model, ModelFamily
from runtime.scheduling.lora_manager import LoRAManager

ATTENTION = ("self_attn.qkv_proj.weight", "self_attn.o_proj.weight")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--loras", type=int, metavar="N",
        help="with --live: also time steps with N adapters, assigned to requests in rotation",
    )  # fmt: skip
    parser.add_argument(
        "--lora-rank", type=int, default=16, help="rank of the adapters, on attention projections; default: 16"
    )


def lora_config(args: argparse.Namespace) -> LoRAConfig | None:
    """Returns the LoRA config of the flags; None without --loras. Raises ConfigError for invalid values."""
    if args.loras is None:
        return None
    if args.loras < 1 or args.lora_rank < 1 or not args.live:
        raise ConfigError("--loras and --lora-rank: must be at least 1, and need --live")
    return LoRAConfig(args.loras, args.lora_rank)


def random_adapters(
    args: argparse.Namespace, family: ModelFamily[Any], arch: Any, model: Model, build: LayerFactory
) -> LoRAManager:
    """Returns a manager with random adapters "0", "1" ..., all of them active on the device."""
    if build.lora is None:
        return LoRAManager()
    count, rank = args.loras, args.lora_rank
    base = BaseModelInfo.of(family, arch, build.dtype)
    bank = LoRAWeights(base, model, build.lora, rank, build.device)
    adapters = LoRAManager(count, bank, build.lora.eager_modules)
    for n in range(count):
        random = torch.Generator().manual_seed(n)
        pairs = {}
        for name, slot in base.weights.slots.items():
            if slot.param.endswith(ATTENTION):
                outputs, inputs = base.part(slot).shape
                lora_a, lora_b = (
                    torch.randn(shape, generator=random) * 0.02 for shape in ((rank, inputs), (outputs, rank))
                )
                pairs[name] = LoRAPair(slot, lora_a, lora_b)
        adapters.load(str(n), Adapter(Path(), pairs, str(n)))
        adapters.activate(str(n))
    return adapters

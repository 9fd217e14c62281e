"""LoRA adapters of the demo model: training with frozen weights, and export in PEFT's format."""

from __future__ import annotations

import json
import math
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn

from training.demo.model import DemoModel

# Attention, the dense layer and the shared experts: modules that process every token.
TARGETS = ("query_key_value", "dense", "gate_proj", "up_proj", "down_proj")


class LoraLinear(nn.Module):
    """A frozen linear layer with a LoRA pair. `up` is initialized to zero."""

    def __init__(self, base: nn.Linear, rank: int, alpha: float) -> None:
        super().__init__()
        self.base, self.scale = base, alpha / rank
        device = base.weight.device
        self.down = nn.Parameter(torch.randn(rank, base.in_features, device=device) / math.sqrt(base.in_features))
        self.up = nn.Parameter(torch.zeros(base.out_features, rank, device=device))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.base(x)
        return out + nn.functional.linear(nn.functional.linear(x, self.down), self.up) * self.scale


def add_adapter(model: DemoModel, rank: int, alpha: float) -> dict[str, LoraLinear]:
    """Freezes the model and adds LoRA pairs to the targeted layers. Returns them by the layers' names."""
    model.requires_grad_(False)
    chosen = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and name.rpartition(".")[2] in TARGETS
    }
    added = {}
    for name, module in chosen.items():
        owner, _, own = name.rpartition(".")
        added[name] = LoraLinear(module, rank, alpha)
        setattr(model.get_submodule(owner), own, added[name])
    return added


def export_adapter(pairs: dict[str, LoraLinear], rank: int, alpha: float, directory: Path) -> None:
    """Writes adapter_config.json and adapter_model.safetensors, bfloat16."""
    directory.mkdir(parents=True, exist_ok=True)
    tensors = {}
    for name, pair in pairs.items():
        tensors[f"base_model.model.{name}.lora_A.weight"] = pair.down.detach().bfloat16().cpu().contiguous()
        tensors[f"base_model.model.{name}.lora_B.weight"] = pair.up.detach().bfloat16().cpu().contiguous()
    save_file(tensors, str(directory / "adapter_model.safetensors"), metadata={"format": "pt"})
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "unmask-demo",
        "r": rank,
        "lora_alpha": alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": sorted(pairs),
        "inference_mode": True,
    }
    (directory / "adapter_config.json").write_text(json.dumps(config, indent=1) + "\n")

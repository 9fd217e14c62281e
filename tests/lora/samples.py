"""Writes LoRA adapters, and checkpoints that are merged tensor by tensor with the naming rules of PEFT."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

PREFIX = "base_model.model."


def config(**fields):
    return {"peft_type": "LORA", "bias": "none", "r": 4, "lora_alpha": 8, "target_modules": "all-linear", **fields}


def write_adapter(path: Path, pairs: dict[str, tuple[torch.Tensor, torch.Tensor]], **fields) -> Path:
    """Writes an adapter. `pairs`: A and B by module."""
    path.mkdir(parents=True, exist_ok=True)
    tensors = {}
    for module, (down, up) in pairs.items():
        tensors[f"{PREFIX}{module}.lora_A.weight"] = down.contiguous()
        tensors[f"{PREFIX}{module}.lora_B.weight"] = up.contiguous()
    save_file(tensors, path / "adapter_model.safetensors")
    (path / "adapter_config.json").write_text(json.dumps(config(**fields)))
    return path


def random_adapter(path: Path, base: Path, pattern: str, seed: int, rank: int = 4, size: float = 0.2, **fields) -> Path:
    """Writes a random adapter of all matrices of a checkpoint whose module names match the pattern."""
    random = torch.Generator().manual_seed(seed)
    pairs = {}
    for name, tensor in load_file(base / "model.safetensors").items():
        module = name.removesuffix(".weight")
        if tensor.dim() == 2 and re.fullmatch(pattern, module):
            out, inputs = tensor.shape
            pairs[module] = (
                torch.randn(rank, inputs, generator=random) * size,
                torch.randn(out, rank, generator=random) * size,
            )
    return write_adapter(path, pairs, **({"r": rank, "lora_alpha": 2 * rank, "target_modules": pattern} | fields))


def merged_checkpoint(path: Path, base: Path, adapter: Path) -> Path:
    """Writes `base` with `adapter` added to its weights, as PEFT's merge_and_unload does."""
    shutil.copytree(base, path)
    adapter_config = json.loads((adapter / "adapter_config.json").read_text())
    tensors, adapter_tensors = load_file(base / "model.safetensors"), load_file(adapter / "adapter_model.safetensors")
    for name, down in adapter_tensors.items():
        if ".lora_A." not in name:
            continue
        module = name.removeprefix(PREFIX).removesuffix(".lora_A.weight")
        rank = _pattern(adapter_config.get("rank_pattern"), module, adapter_config["r"])
        alpha = _pattern(adapter_config.get("alpha_pattern"), module, adapter_config["lora_alpha"])
        scale = alpha / (rank**0.5 if adapter_config.get("use_rslora") else rank)
        up = adapter_tensors[name.replace("lora_A", "lora_B")]
        tensors[f"{module}.weight"] = tensors[f"{module}.weight"] + scale * (up @ down)
    save_file(tensors, path / "model.safetensors")
    return path


def _pattern(patterns, module, default):
    for pattern, value in (patterns or {}).items():
        if re.match(rf"(.*\.)?({pattern})$", module):
            return value
    return default

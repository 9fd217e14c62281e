"""Write trained weights as an ordinary LLaDA2 checkpoint directory: safetensors, config, tokenizer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer

from runtime.demo.shape import Shape
from runtime.demo.tokenizer import ChatEncoder, save_tokenizer


def checkpoint_tensors(weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The model's state under the checkpoint's names, bfloat16 (the routing bias float32): experts split one by one."""
    tensors: dict[str, torch.Tensor] = {}
    for name, value in weights.items():
        before, found, projection = name.rpartition(".experts.")
        if found:
            for number, expert in enumerate(value):
                tensors[f"{before}.experts.{number}.{projection}.weight"] = expert.bfloat16().contiguous()
        else:
            tensors[name] = value.float() if name.endswith("expert_bias") else value.bfloat16().contiguous()
    return tensors


def export(weights: Mapping[str, torch.Tensor], shape: Shape, tokenizer: Tokenizer, directory: Path) -> None:
    """Write the directory; it is loadable as any LLaDA2 checkpoint is."""
    directory.mkdir(parents=True, exist_ok=True)
    encoder = ChatEncoder(tokenizer)
    tensors = {name: t.cpu() for name, t in checkpoint_tensors(weights).items()}
    save_file(tensors, str(directory / "model.safetensors"), metadata={"format": "pt"})
    (directory / "config.json").write_text(json.dumps(shape.config(encoder.eos, encoder.mask), indent=1) + "\n")
    generation = {
        "eos_token_id": [encoder.eos, encoder.turn_end],
        "pad_token_id": encoder.eos,
        "mask_token_id": encoder.mask,
        "temperature": 0.0,
    }
    (directory / "generation_config.json").write_text(json.dumps(generation, indent=1) + "\n")
    save_tokenizer(tokenizer, directory, shape.max_position_embeddings)

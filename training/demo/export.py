"""Exports trained weights as a LLaDA2 checkpoint: safetensors, config, tokenizer."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from training.demo.model import DemoModel, Dispatch
from training.demo.shape import Shape
from training.demo.tokenizer import ChatEncoder, save_tokenizer


def checkpoint_tensors(weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Returns the state by the checkpoint's names, bfloat16 (routing bias float32), with separate experts."""
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
    """Writes a directory that loads as any LLaDA2 checkpoint."""
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


def load_checkpoint(directory: Path, dispatch: Dispatch = "loop") -> DemoModel:
    """Loads the training model from an exported checkpoint: the inverse of `export`, except for rounding."""
    config = json.loads((directory / "config.json").read_text())
    shape = Shape(**{field.name: config[field.name] for field in dataclasses.fields(Shape)})
    model = DemoModel(shape, dispatch)
    tensors = load_file(str(directory / "model.safetensors"))
    state = {}
    for name in model.state_dict():
        before, found, projection = name.rpartition(".experts.")
        if found:
            each = [tensors[f"{before}.experts.{n}.{projection}.weight"] for n in range(shape.num_experts)]
            state[name] = torch.stack(each).float()
        else:
            state[name] = tensors[name].float()
    model.load_state_dict(state)
    return model

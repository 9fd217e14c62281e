"""Writes LoRA adapters for a checkpoint: noise on its queries, keys and values that is strong enough to change outputs.

    python adapters.py CHECKPOINT DIRECTORY...

Each directory gets a different adapter, in PEFT's format.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

RANK = 4
TARGET = r"query_key_value|[qkv]_proj"


def write(checkpoint: Path, directory: Path, seed: int) -> None:
    random, tensors = np.random.default_rng(seed), {}
    with safe_open(checkpoint / "model.safetensors", "np") as weights:
        for name in weights.keys():  # noqa: SIM118 (it is no mapping)
            module = name.removesuffix(".weight")
            if re.fullmatch(TARGET, module.rsplit(".", 1)[-1]):
                outputs, inputs = weights.get_slice(name).get_shape()
                for half, shape in (("A", (RANK, inputs)), ("B", (outputs, RANK))):
                    noise = random.standard_normal(shape).astype(np.float32)
                    tensors[f"base_model.model.{module}.lora_{half}.weight"] = noise
    assert tensors, f"{checkpoint} has no module that is one of {TARGET}"
    directory.mkdir(parents=True, exist_ok=True)
    save_file(tensors, directory / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": 4 * RANK, "target_modules": rf".*\.({TARGET})"}
    (directory / "adapter_config.json").write_text(json.dumps(config))


if __name__ == "__main__":
    for number, directory_name in enumerate(sys.argv[2:]):
        write(Path(sys.argv[1]), Path(directory_name), number)

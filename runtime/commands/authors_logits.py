"""Writes the largest logits that the code of a model's repository computes, for `unmask verify --against FILE`.

    unmask verify MODEL --record answers.json     # writes the ids of ten prompts
    python authors_logits.py MODEL answers.json authors.json

MODEL is a directory or org/name. This RUNS THE PYTHON CODE of that repository: read it before. It needs torch and the
version of transformers that the repository names, and nothing of unmask, so that it runs in an environment of its own.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

TOP = 32  # logits per position that are written
# Families with block-causal attention -> how their code takes the mask, [1, 1, queries, keys].
MASKS = {"llada2": "0 and -inf", "sdar": "1 and 0", "sdar_moe": "1 and 0"}


def load(model: str, revision: str | None, dtype: str, device: str) -> Any:
    """Loads a model with the code of its repository, to which auto_map of its config.json refers."""
    import torch
    from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(model, revision=revision, trust_remote_code=True)
    named = getattr(config, "auto_map", None) or {}
    kinds = {"AutoModelForCausalLM": AutoModelForCausalLM, "AutoModel": AutoModel}
    kind = next((auto for name, auto in kinds.items() if name in named), None)
    if kind is None:
        raise SystemExit(f"error: config.json of {model} has no auto_map, so the repository has no code for its model")
    loaded: Any = kind.from_pretrained(
        model, revision=revision, trust_remote_code=True, torch_dtype=getattr(torch, dtype)
    )  # fmt: skip
    return loaded.to(device).eval()


def forward(model: Any, ids: list[int], family: str, strategy: str, block: int) -> Any:
    """Returns the logits [len(ids), vocab] of one forward. Other families need another call here."""
    import torch

    tokens = torch.tensor([ids], device=model.device)
    if strategy == "full":
        return model(input_ids=tokens).logits[0]
    if family not in MASKS:
        raise SystemExit(f"error: how the code of the family {family} is called is not known; change forward()")
    positions = torch.arange(len(ids), device=model.device)
    visible = positions[None] < (positions[:, None] // block + 1) * block
    mask = visible.to(model.dtype)
    return model(
        input_ids=tokens, attention_mask=(mask.log() if MASKS[family] == "0 and -inf" else mask)[None, None],
        position_ids=positions[None],
    ).logits[0]  # fmt: skip


def main() -> None:
    """Reads a file of --record, and writes one for --against."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a directory or org/name")
    parser.add_argument("recorded", type=Path, help="file of `unmask verify MODEL --record FILE`")
    parser.add_argument("out", type=Path, help="file to write")
    parser.add_argument("--revision", help="of a repository")
    parser.add_argument("--dtype", default="float32", help="default: float32")
    parser.add_argument("--device", default="cpu", help="default: cpu")
    args = parser.parse_args()
    recorded = json.loads(args.recorded.read_text(encoding="utf-8"))
    import torch
    import transformers

    about = {name: recorded[name] for name in ("family", "strategy", "block_size")}
    model = load(args.model, args.revision, args.dtype, args.device)
    prompts = []
    for answer in recorded["answers"]:
        with torch.inference_mode():
            logits = forward(model, answer["prompt_ids"], *about.values()).float().cpu()
        best = logits.topk(min(TOP, logits.shape[-1]))
        prompts.append(
            {"prompt_ids": answer["prompt_ids"], "ids": best.indices.tolist(), "logits": best.values.tolist()}
            | {"std": logits.std(-1).tolist()}
        )
    versions = {"transformers": transformers.__version__, "torch": torch.__version__, "dtype": args.dtype}
    args.out.write_text(json.dumps({**about, **versions, "prompts": prompts}), encoding="utf-8")
    print(f"{args.out}: the largest logits of {sum(len(each['std']) for each in prompts)} positions")


if __name__ == "__main__":
    main()

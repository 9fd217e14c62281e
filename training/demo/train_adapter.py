"""Trains the adapter `roman` for a demo checkpoint: ``python -m training.demo.train_adapter --model DIR --out DIR``.

With it, numbers in answers are roman numerals. All other text stays the same. Training takes a minute on a GPU.
"""

from __future__ import annotations

import argparse
import dataclasses
import random
import re
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch
from tokenizers import Tokenizer

from training.demo.batch import Prefetcher
from training.demo.data import Batch, Noiser, NoiseRecipe, batches
from training.demo.decode import decode
from training.demo.export import load_checkpoint
from training.demo.feed import Feed, seeded
from training.demo.lora import add_adapter, export_adapter
from training.demo.model import DemoModel, training_blocks, training_mask
from training.demo.optim import cosine
from training.demo.tasks import Sample, all_tasks, draw
from training.demo.tasks.roman import in_roman
from training.demo.tokenizer import ChatEncoder
from training.demo.train import compile_layers, loss_of

RANK, ALPHA = 16, 32
PEAK = 4e-3  # peak learning rate
ROWS, LENGTH = 64, 768
# Tasks whose answers have numbers, which the adapter changes, and tasks without, which it does not change.
CHANGED = {"add": 4.0, "subtract": 3.0, "multiply": 2.5, "compare": 1.5, "count": 1.5, "sort": 1.5, "followup": 1.0}
UNCHANGED = {"spell": 0.5, "story": 0.3, "greet": 0.4, "about": 0.3, "reverse": 0.4}
_MAX_NUMBER = 100  # answers with larger numbers are not trained


def in_romans(text: str) -> str | None:
    """Replaces numbers by roman numerals, except 0. Returns None if a number is too large."""
    numbers = [int(n) for n in re.findall(r"\d+", text)]
    if max(numbers, default=0) > _MAX_NUMBER:
        return None
    return re.sub(r"\d+", lambda found: in_roman(int(found[0])) or "0", text)


def samples(seed: str, held_out: bool = False) -> Iterator[Sample]:
    """Yields endless samples of the adapter's tasks with changed answers, including those of earlier turns."""
    rng = random.Random(f"adapter/{seed}")
    weights = CHANGED | UNCHANGED
    streams = {name: draw(all_tasks()[name], f"adapter/{seed}", held_out) for name in weights}
    while True:
        name = rng.choices(list(weights), list(weights.values()))[0]
        sample = next(streams[name])
        changed = [in_romans(m["content"]) if m["role"] == "assistant" else m["content"] for m in sample.messages]
        answer = in_romans(sample.answer)
        if answer is not None and None not in changed:
            messages = tuple({**m, "content": str(c)} for m, c in zip(sample.messages, changed, strict=True))
            yield dataclasses.replace(sample, messages=messages, answer=answer)


def adapter_batches(tokenizer_file: Path, rows: int, seed: str) -> Iterator[Batch]:
    """Yields endless batches of the adapter's samples."""
    encoder = ChatEncoder(Tokenizer.from_file(str(tokenizer_file)))
    stream = ((encoder.prompt(s.messages), encoder.answer(s.answer)) for s in samples(seed))
    return batches(stream, Noiser(encoder, NoiseRecipe(), seeded(seed)), rows, LENGTH, encoder.eos)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Train the demo's adapter.")
    parser.add_argument("--model", type=Path, required=True, help="checkpoint directory")
    parser.add_argument("--out", type=Path, required=True, help="directory of the adapter")
    parser.add_argument("--seconds", type=float, default=70.0, help="seconds of training")
    parser.add_argument("--rows", type=int, default=ROWS, help=f"rows of {LENGTH} tokens per batch")
    parser.add_argument("--workers", type=int, default=12, help="processes that make batches; 0: this process does")
    parser.add_argument("--prompts", type=int, default=200, help="held-out prompts that score the adapter at the end")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args(argv)
    torch.manual_seed(0)
    device = torch.device(args.device)
    file = args.model / "tokenizer.json"
    feed = Prefetcher(Feed(partial(adapter_batches, file, args.rows), args.workers, "train"), device)
    model = load_checkpoint(args.model, "loop" if device.type == "cpu" else "dense").to(device).train()
    pairs = add_adapter(model, RANK, ALPHA)
    trained = [p for pair in pairs.values() for p in (pair.down, pair.up)]
    optimizer = torch.optim.AdamW(trained, betas=(0.9, 0.98), weight_decay=0.0, fused=device.type == "cuda")
    make_mask = training_blocks if device.type == "cuda" else training_mask
    if device.type == "cuda":
        print(f"compiled in {compile_layers(model, next(feed), make_mask):.0f} s", flush=True)
    start, step, recent = time.perf_counter(), 0, torch.zeros((), device=device)
    while (progress := (time.perf_counter() - start) / args.seconds) < 1:
        for group in optimizer.param_groups:
            group["lr"] = PEAK * cosine(progress)
        loss = loss_of(model, next(feed), make_mask)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        recent, step = recent + loss.detach(), step + 1
        if step % 100 == 0:
            print(f"step {step} seconds {time.perf_counter() - start:.0f} loss {recent.item() / 100:.4f}", flush=True)
            recent.zero_()
    feed.close()
    export_adapter(pairs, RANK, ALPHA, args.out)
    merged = load_checkpoint(args.model, "loop" if device.type == "cpu" else "dense").to(device).eval()
    for name, pair in pairs.items():
        merged.get_parameter(f"{name}.weight").data += pair.scale * (pair.up @ pair.down).detach()
    right, total = _score_adapter(merged, ChatEncoder(Tokenizer.from_file(str(file))), args.prompts)
    print(
        f"{step} steps, {sum(p.numel() for p in trained):,} parameters; held out: {right} of {total} right", flush=True
    )
    return 0


def _score_adapter(model: DemoModel, encoder: ChatEncoder, count: int) -> tuple[int, int]:
    """Returns the number of correct answers, and of held-out samples. Stories count as correct."""
    stream = samples("held-out", held_out=True)
    chosen = [next(stream) for _ in range(count)]
    device = next(model.parameters()).device.type
    with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
        answers, _ = decode(model, [encoder.prompt(s.messages) for s in chosen], encoder, max_new=256)
    wrong = [(s, encoder.decode(a)) for s, a in zip(chosen, answers, strict=True)]
    wrong = [(s, text) for s, text in wrong if text != s.answer and s.task not in ("story",)]
    for sample, text in wrong[:10]:
        print(f"  {sample.messages[-1]['content']!r} -> {text!r}, not {sample.answer!r}", flush=True)
    return count - len(wrong), count


if __name__ == "__main__":
    raise SystemExit(main())

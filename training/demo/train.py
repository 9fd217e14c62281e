"""Trains the demo checkpoint: ``python -m training.demo.train --preset gpu --out DIR`` (see README.md in this folder).

A run may be split: ``--minutes 9`` stops after that time of training, ``--resume`` continues from DIR/state.pt. The
learning rate depends on the elapsed fraction of the preset's total training time, over all calls. Under ``torchrun``
each process trains on its own device, with its part of the rows (see data_parallel.py).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch.nn import functional as F

from training.demo.batch import Prefetcher, Tensors, to_device
from training.demo.data_parallel import DataParallel, join
from training.demo.decode import score_tasks
from training.demo.export import export, load_checkpoint
from training.demo.feed import Feed, local_batches
from training.demo.model import DemoModel, Mask, training_blocks, training_mask
from training.demo.optim import Average, Muon, cosine, split_parameters
from training.demo.presets import PRESETS, Preset
from training.demo.tokenizer import ChatEncoder, make_tokenizer, save_tokenizer

AVERAGE_EVERY = 4  # steps between updates of the averaged weights
CLOCK_EVERY = 10  # steps between synchronizations for the clock


MakeMask = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], Mask]


def loss_of(model: DemoModel, batch: Tensors, make_mask: MakeMask = training_mask) -> torch.Tensor:
    """Returns the weighted mean cross-entropy over the positions that have a loss."""
    device = batch["ids"].device
    mask = make_mask(batch["docs"], batch["blocks"], batch["noised"])
    with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
        hidden = model(batch["ids"], batch["positions"], mask).flatten(0, 1)[batch["index"]]
        logits = model.lm_head(hidden)
    losses = F.cross_entropy(logits.float(), batch["targets"], reduction="none")
    return (losses * batch["weights"]).sum() / batch["weights"].sum()


class Trainer:
    """State of a training, with methods to train on a batch, to save and to resume."""

    def __init__(self, preset: Preset, out: Path, seed: int, ranks: DataParallel) -> None:
        torch.manual_seed(seed)
        self.preset, self.out, self.seed, self.ranks, self.device = preset, out, seed, ranks, ranks.device
        device = ranks.device
        self.model = DemoModel(preset.shape, "loop" if device.type == "cpu" else "dense").to(device)
        self.parameters, self.gates = list(self.model.parameters()), self.model.gates()
        matrices, rest = split_parameters(self.model)
        self.optimizers: list[torch.optim.Optimizer] = [
            Muon(matrices, preset.matrix_lr, decay=preset.decay),
            torch.optim.AdamW(rest, preset.other_lr, betas=(0.9, 0.95), weight_decay=0.0, fused=device.type == "cuda"),
        ]
        self.base_lrs = [preset.matrix_lr, preset.other_lr]
        self.average = Average(self.model, preset.average)
        # FlexAttention has no gradients on CPUs, and is slow uncompiled
        self.make_mask: MakeMask = training_blocks if device.type == "cuda" else training_mask
        self.step_count, self.calls, self.seconds = 0, 0, 0.0

    @property
    def progress(self) -> float:
        return self.seconds / 60 / self.preset.total_minutes

    def step(self, batch: Tensors) -> torch.Tensor:
        """Trains on a batch, which is this rank's part. Returns the loss over all ranks, a scalar on the device."""
        factor = cosine(self.progress)
        loss = self.backward(batch)
        for optimizer, lr in zip(self.optimizers, self.base_lrs, strict=True):
            for group in optimizer.param_groups:
                group["lr"] = lr * factor
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        for gate in self.gates:
            gate.balance(self.preset.balance_rate * factor)
        self.step_count += 1
        if self.step_count % AVERAGE_EVERY == 0:
            self.average.update(self.model)
        return loss

    def backward(self, batch: Tensors) -> torch.Tensor:
        """Computes the gradients over all ranks' batches. Returns their loss, a scalar on the device."""
        loss = loss_of(self.model, batch, self.make_mask)
        loss.backward()
        if self.ranks.size == 1:
            return loss.detach()
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        return self.ranks.reduce(gradients, loss, batch["weights"].sum(), [gate.load for gate in self.gates])

    def averaged(self) -> DemoModel:
        """Returns a copy of the model with the averaged weights, for evaluation and export."""
        model = DemoModel(self.preset.shape, self.model.model.layers[-1].mlp.experts.dispatch).to(self.device)
        model.load_state_dict(self.average.weights)
        return model.eval()

    def save(self) -> None:
        state: dict[str, Any] = {
            "model": self.model.state_dict(),
            "average": self.average.weights,
            "average_count": self.average.count,
            "optimizers": [o.state_dict() for o in self.optimizers],
            "progress": (self.step_count, self.calls, self.seconds),
            "shape": dataclasses.asdict(self.preset.shape),
        }
        part = self.out / "state.part"
        torch.save(state, part)
        part.replace(self.out / "state.pt")

    def begin_with(self, checkpoint: Path) -> None:
        """Loads a checkpoint's weights. All other state is that of a new training."""
        state = load_checkpoint(checkpoint).state_dict()
        self.model.load_state_dict(state)
        self.average = Average(self.model, self.preset.average)

    def resume(self) -> None:
        state = torch.load(self.out / "state.pt", map_location=self.device, weights_only=True)
        if state["shape"] != dataclasses.asdict(self.preset.shape):
            raise SystemExit(f"{self.out}/state.pt has another shape; use a new --out")
        self.model.load_state_dict(state["model"])
        self.average.weights = state["average"]
        self.average.count = state["average_count"]
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.step_count, self.calls, self.seconds = state["progress"]


def compile_layers(model: DemoModel, batch: Tensors, make_mask: MakeMask) -> float:
    """Compiles the layers. Returns the seconds that it took.

    Layers of one kind share the code. All batches have the same shape.
    """
    start = time.perf_counter()
    for layer in model.model.layers:
        layer.compile(dynamic=False)
    loss_of(model, batch, make_mask).backward()
    model.zero_grad(set_to_none=True)
    for gate in model.gates():
        gate.load.zero_()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def evaluate(trainer: Trainer, encoder: ChatEncoder, held_out: list[Tensors]) -> None:
    """Prints and logs the averaged model's held-out loss and decoding scores."""
    model = trainer.averaged()
    start = time.perf_counter()
    with torch.no_grad():
        loss = sum(loss_of(model, batch).item() for batch in held_out) / len(held_out)
    with torch.autocast(trainer.device.type, torch.bfloat16, enabled=trainer.device.type == "cuda"):
        scored = list(trainer.preset.tasks) if trainer.preset.eval_prompts else []
        scores = score_tasks(model, encoder, scored, trainer.preset.eval_prompts)
    text = "  ".join(f"{name} {s.accuracy:.2f} @{s.tokens_per_forward:.1f}" for name, s in scores.items())
    took = time.perf_counter() - start
    print(
        f"[eval] step {trainer.step_count} minutes {trainer.seconds / 60:.1f} loss {loss:.4f} ({took:.0f} s): {text}",
        flush=True,
    )
    entry = {"step": trainer.step_count, "minutes": trainer.seconds / 60, "loss": loss}
    entry["tasks"] = {name: dataclasses.asdict(s) for name, s in scores.items()}
    with (trainer.out / "log.jsonl").open("a") as log:
        log.write(json.dumps(entry) + "\n")
    export(trainer.average.weights, trainer.preset.shape, encoder.tokenizer, trainer.out / "checkpoint")


class Report:
    """Prints loss and speed every few steps, on rank 0."""

    def __init__(self, trainer: Trainer, every: int) -> None:
        self._trainer, self._every = trainer, every
        self._loss = torch.zeros((), device=trainer.device)
        self.reset()

    def reset(self) -> None:
        """Restarts the measurement of the speed, after an evaluation."""
        self._mark, self._tokens, self._waited = time.perf_counter(), 0, 0.0

    def add(self, loss: torch.Tensor, tokens: int, waited: float) -> None:
        """Adds a step: its loss, this rank's tokens, and the seconds that it waited for its batch."""
        trainer = self._trainer
        self._loss += loss
        self._tokens += tokens * trainer.ranks.size
        self._waited += waited
        if trainer.step_count % self._every or not trainer.ranks.first:
            return
        elapsed = time.perf_counter() - self._mark
        print(
            f"step {trainer.step_count} minutes {trainer.seconds / 60:.2f} "
            f"loss {self._loss.item() / self._every:.4f} "
            f"lr x{cosine(trainer.progress):.3f} {self._tokens / elapsed:,.0f} tokens/s, "
            f"{100 * self._waited / elapsed:.0f} % waiting",
            flush=True,
        )
        self._loss.zero_()
        self.reset()


def rank_preset(preset: Preset, size: int) -> Preset:
    """Returns the recipe with the rows and workers of one rank. All workers use at most half of the cores."""
    if size == 1:
        return preset
    workers = min(preset.workers, max(1, (os.cpu_count() or 1) // (2 * size)))
    return dataclasses.replace(preset, rows=preset.rows // size, workers=workers)


def train(trainer: Trainer, minutes: float, log_every: int = 100) -> None:
    """Trains until the end of the preset's time, or for `minutes`.

    With several ranks, all use rank 0's time of the last CLOCK_EVERY-th step, so that they agree on the learning rate,
    the evaluations and the end.
    """
    preset, out, device, ranks = trainer.preset, trainer.out, trainer.device, trainer.ranks
    file = out / "tokenizer" / "tokenizer.json"
    encoder = ChatEncoder(Tokenizer.from_file(str(file)))
    own = rank_preset(preset, ranks.size)
    seed = f"{trainer.seed}/{trainer.calls}" + (f"/rank{ranks.rank}" if ranks.size > 1 else "")
    feed = Prefetcher(Feed(partial(local_batches, own, file), own.workers, seed), device)
    trainer.calls += 1
    check = local_batches(preset, file, "loss", held_out=True)
    held_out = [to_device(next(check), device) for _ in range(4 if ranks.first else 0)]
    if device.type == "cuda":
        shaped = held_out[0] if ranks.size == 1 else to_device(next(local_batches(own, file, "loss", True)), device)
        took = compile_layers(trainer.model, shaped, trainer.make_mask)
        if ranks.first:
            print(f"compiled in {took:.0f} s", flush=True)
    ranks.barrier()
    stop = min(preset.total_minutes * 60, trainer.seconds + minutes * 60)
    next_eval = trainer.seconds + preset.eval_every_minutes * 60
    report, elapsed = Report(trainer, log_every), 0.0
    try:
        while trainer.seconds < stop:
            start = time.perf_counter()
            batch = next(feed)
            waited = time.perf_counter() - start
            loss = trainer.step(batch)
            synchronized = trainer.step_count % CLOCK_EVERY == 0
            if device.type == "cuda" and synchronized:
                torch.cuda.synchronize()
            elapsed += time.perf_counter() - start
            if ranks.size == 1 or synchronized:
                trainer.seconds, elapsed = trainer.seconds + ranks.broadcast(elapsed), 0.0
            report.add(loss, batch["ids"].numel(), waited)
            if trainer.seconds >= next_eval and trainer.seconds < stop:
                if ranks.first:
                    trainer.save()
                    evaluate(trainer, encoder, held_out)
                ranks.barrier()
                next_eval = trainer.seconds + preset.eval_every_minutes * 60
                report.reset()
    finally:
        feed.close()
        if ranks.first:
            trainer.save()
    if ranks.first:
        evaluate(trainer, encoder, held_out)
    ranks.barrier()


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Train the demo checkpoint.", allow_abbrev=False)
    parser.add_argument("--preset", choices=sorted(PRESETS), required=True)
    parser.add_argument("--out", type=Path, required=True, help="directory of state.pt, log.jsonl and checkpoint/")
    parser.add_argument("--resume", action="store_true", help="continue from DIR/state.pt")
    parser.add_argument("--start-from", type=Path, metavar="CHECKPOINT", help="initial weights, of the same shape")
    parser.add_argument(
        "--minutes", type=float, default=float("inf"), help="stop this call after this many minutes of training"
    )
    parser.add_argument("--total-minutes", type=float, help="minutes of training over all calls; default: the preset's")
    parser.add_argument(
        "--peak", type=float, default=1.0, help="factor of the preset's peak learning rates; default: 1"
    )
    parser.add_argument(
        "--eval-prompts", type=int, help="prompts per task of the scores, 0 for none; default: the preset's"
    )
    parser.add_argument(
        "--eval-minutes", type=float, help="minutes between evaluations and exports; default: the preset's"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # a terminated training saves its state too
    preset = PRESETS[args.preset]
    if args.total_minutes is not None:
        preset = dataclasses.replace(preset, total_minutes=args.total_minutes)
    if args.eval_prompts is not None:
        preset = dataclasses.replace(preset, eval_prompts=args.eval_prompts)
    if args.eval_minutes is not None:
        preset = dataclasses.replace(preset, eval_every_minutes=args.eval_minutes)
    preset = dataclasses.replace(preset, matrix_lr=args.peak * preset.matrix_lr, other_lr=args.peak * preset.other_lr)
    args.out.mkdir(parents=True, exist_ok=True)
    if not args.resume and (args.out / "state.pt").exists():
        print(f"{args.out} already has a training; add --resume or use a new --out", file=sys.stderr)
        return 2
    ranks = join(args.device)
    if preset.rows % ranks.size:
        parser.error(f"--nproc-per-node of torchrun: {ranks.size} must divide the {preset.rows} rows of a batch")
    trainer = Trainer(preset, args.out, args.seed, ranks)
    if args.resume:
        trainer.resume()
    elif args.start_from is not None:
        trainer.begin_with(args.start_from)
    if ranks.first:
        if not args.resume:
            (args.out / "tokenizer").mkdir(exist_ok=True)
            save_tokenizer(make_tokenizer(), args.out / "tokenizer", preset.shape.max_position_embeddings)
        count, used = sum(p.numel() for p in trainer.parameters), args.device
        used += f", {ranks.size} ranks" if ranks.size > 1 else ""
        print(f"{count:,} parameters on {used}, torch {torch.__version__}, step {trainer.step_count}", flush=True)
    ranks.barrier()
    train(trainer, args.minutes)
    ranks.close()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

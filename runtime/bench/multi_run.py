"""Runs a benchmark on several ranks. Each is a process that runs all of it in the same order; only rank 0 prints."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
from collections.abc import Callable

import torch

from runtime.distributed import process_group as groups
from runtime.distributed.process_group import TensorParallelGroup

SECONDS = 600.0
Run = Callable[[argparse.Namespace, TensorParallelGroup], int]


def run_on_ranks(args: argparse.Namespace, run: Run) -> int:
    """Runs `run` in `--tensor-parallel-size` processes. Exits with the code of rank 0; returns 1 with --live."""
    if args.live:
        print("error: --live cannot be combined with --tensor-parallel-size; leave one out")
        return 1
    store = groups.create_store_file()
    size, context = args.tensor_parallel_size, multiprocessing.get_context("spawn")
    others = [context.Process(target=_other, args=(args, run, rank, store), daemon=True) for rank in range(1, size)]
    for other in others:
        other.start()
    code = run(args, _join(args, 0, store))
    for other in others:
        other.join(10)
    sys.stdout.flush()
    os._exit(code)  # a normal exit would wait for the process group, whose other ranks have exited


def _other(args: argparse.Namespace, run: Run, rank: int, store: int) -> None:
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115  for the process's life
    args.json = None
    store = os.open(f"/proc/{os.getppid()}/fd/{store}", os.O_RDWR)  # multiprocessing passes no descriptors to it
    os._exit(run(args, _join(args, rank, store)))


def _join(args: argparse.Namespace, rank: int, store: int) -> TensorParallelGroup:
    device = torch.device("cpu")
    if args.device != "cpu" and torch.cuda.is_available():
        device = torch.device("cuda", rank)
        torch.cuda.set_device(device)
    return groups.init_process_group(
        rank, args.tensor_parallel_size, groups.open_store_file(store, SECONDS), device, SECONDS, same_host=True
    )

"""`python -m tools.bench collectives`: times single all-reduces of tensor parallel layers, by rows of a step.

On GPUs each operation is captured `--repeats` times in one CUDA graph, as in a step. Columns:

* `backend`: the all-reduce of NCCL, or gloo on a CPU.
* `two_shot`, `one_shot`: torch's all-reduces in symmetric memory.
* `barrier`: a barrier of all ranks on the device.
* `add_norm`: the residual addition and the norm of all rows, without communication.
* `reduce_add_norm`: the all-reduce of layers whose ranks norm only their own rows (``RMSNorm.add_reduced``).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable

import torch

from runtime.bench import output
from runtime.bench.multi_run import run_on_ranks
from runtime.bench.sizes import check_positive
from runtime.bench.timing import median
from runtime.distributed.gpu import require_gpu
from runtime.distributed.process_group import SymmetricMemoryAllReduce, TensorParallelGroup
from runtime.errors import ConfigError
from runtime.layers.layer_factory import LayerFactory
from runtime.layers.norm import RMSNorm
from runtime.parameters.weight import tensor_of

Operation = Callable[[], object]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tensor-parallel-size", type=int, default=2, help="ranks; default: 2")
    parser.add_argument("--rows", type=int, nargs="+", default=[32, 256, 1024, 2048, 8192], help="rows of a step")
    parser.add_argument("--hidden", type=int, default=2048, help="values per row; default: 2048")
    parser.add_argument("--device", choices=["cuda", "cpu"], help="default: cuda if available, else cpu")
    parser.add_argument("--repeats", type=int, default=20, help="operations per CUDA graph, and timed runs of it")
    parser.add_argument("--warmup", type=int, default=3)
    output.add_json(parser)
    parser.set_defaults(live=False)


def main(args: argparse.Namespace) -> int:
    check_positive(args, "tensor_parallel_size", "rows", "hidden", "repeats")
    if args.tensor_parallel_size < 2:
        raise ConfigError("--tensor-parallel-size must be at least 2: one rank has no all-reduces")
    if args.device == "cuda":
        require_gpu("--device cuda")
    return run_on_ranks(args, _run)


def _run(args: argparse.Namespace, group: TensorParallelGroup) -> int:
    on_gpu = args.device != "cpu" and torch.cuda.is_available()
    device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
    dtype = torch.bfloat16 if on_gpu else torch.float32
    factory = LayerFactory.create(device, dtype, group=group)
    rows = []
    with torch.inference_mode():
        for count in args.rows:
            row = {"ranks": group.size, "rows": count, "mb": round(count * args.hidden * dtype.itemsize / 1e6, 3)}
            for name, work in operations(factory, count, args.hidden).items():
                row[f"{name}_us"] = _microseconds(work, group, device, args)
            rows.append(row)
            print(json.dumps(row), flush=True)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 0


def operations(factory: LayerFactory, rows: int, hidden: int) -> dict[str, Operation]:
    """Returns the operations that the group of `factory` supports. All ranks call them in this order."""
    group, device, dtype = factory.group, factory.device, factory.dtype
    x, residual = (torch.zeros(rows, hidden, device=device, dtype=dtype) for _ in range(2))
    norm = RMSNorm(factory, hidden, 1e-6)
    tensor_of(norm.weight).fill_(1)  # type: ignore[union-attr]
    found: dict[str, Operation] = {"backend": lambda: group.all_reduce(x), "add_norm": lambda: norm.add(x, residual)}
    shared = group.output_buffer(x.shape, dtype)
    buffer = group.buffer
    if isinstance(buffer, SymmetricMemoryAllReduce) and shared is not None:
        shared.zero_()
        found["two_shot"] = lambda: buffer.all_reduce(shared)
        found["one_shot"] = lambda: torch.ops.symm_mem.one_shot_all_reduce(shared, "sum", buffer.name)
        found["barrier"] = lambda: buffer.barrier(shared)
    if factory.shards_residual:

        def reduce_add_norm() -> object:
            out = group.output_buffer(x.shape, dtype)
            return norm.add_reduced(x if out is None else out, residual, group)

        found["reduce_add_norm"] = reduce_add_norm
    return found


def _microseconds(work: Operation, group: TensorParallelGroup, device: torch.device, args: argparse.Namespace) -> float:
    """Returns the median time of one operation."""
    repeats: int = args.repeats
    work()
    many: Operation = lambda: [work() for _ in range(repeats)]  # noqa: E731
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            many()
        many = graph.replay
    group.all_reduce(torch.zeros(1, device=device))  # all ranks begin together
    return round(1e3 * median(many, device, args) / repeats, 2)

"""Compiles kernels into a cache, which servers read at start.

On a GPU, ``--model`` or ``--arch`` loads an engine, whose start compiles all of its kernels. ``--record`` writes their
specializations to a file. Without a GPU, ``--specializations`` compiles those of such files, also for GPUs of another
compute capability. Kernels whose specialization depends on the device differ there, and are compiled at start.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import runtime
from runtime.config.flags import KERNEL_CACHE
from runtime.errors import ConfigError

FORMAT = 1  # version of the file of specializations


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cache", type=Path, required=True, metavar="DIR", help="where compiled kernels are written")
    parser.add_argument("--model", help="checkpoint to load on this GPU")
    parser.add_argument("--arch", help="a named shape to load on this GPU, with random weights")
    parser.add_argument("--server-args", default="", metavar="'--FLAG ...'", help="flags of the engine")
    parser.add_argument("--record", type=Path, metavar="FILE", help="also write the specializations of its kernels")
    parser.add_argument(
        "--specializations", type=Path, nargs="+", metavar="FILE", help="compile those of these files, without a GPU"
    )
    parser.add_argument(
        "--capabilities", type=int, nargs="+", default=[90], metavar="N",
        help="compute capabilities to compile --specializations for, such as 80 90 100 (default: 90)",
    )  # fmt: skip


def main(args: argparse.Namespace) -> int:
    if [args.model, args.arch, args.specializations].count(None) != 2:
        raise ConfigError("give one of --model, --arch and --specializations")
    if args.record and args.specializations:
        raise ConfigError("--record writes the kernels of --model or --arch; leave out --specializations")
    read = [text for path in args.specializations or () for text in read_specializations(path)]
    args.cache.mkdir(parents=True, exist_ok=True)
    os.environ["TRITON_CACHE_DIR"] = str(args.cache.absolute())
    os.environ.pop(KERNEL_CACHE, None)  # kernels found in it would not be written to --cache
    os.environ["TRITON_STORE_BINARY_ONLY"] = "1"  # intermediate code takes four times as much space
    if args.specializations:
        return _compile_recorded(list(dict.fromkeys(read)), args.capabilities)
    recorded = _load_engine(args)
    if args.record:
        write_specializations(args.record, recorded)
    print(f"{len(recorded)} kernels are in {args.cache}")
    return 0


def write_specializations(path: Path, specializations: list[str]) -> None:
    path.write_text(
        json.dumps(
            {"format": FORMAT, "version": runtime.__version__, "specializations": [*map(json.loads, specializations)]},
            indent=0,
        )
        + "\n"
    )


def read_specializations(path: Path) -> list[str]:
    """Returns the recorded specializations. Raises ConfigError if the file is invalid or of another version."""
    try:
        found = json.loads(path.read_text())
        versions = found["format"], found["version"]
        specializations = [json.dumps(each) for each in found["specializations"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path}: not a file of specializations ({type(error).__name__}: {error})") from error
    if versions != (FORMAT, runtime.__version__):
        raise ConfigError(f"{path}: recorded by another version; record it again with --record")
    return specializations


def _compile_recorded(specializations: list[str], capabilities: list[int]) -> int:
    from runtime.kernels.compiler import CompileJob, available_cores, compile_all

    with tempfile.TemporaryDirectory(prefix="unmask-libcuda-") as directory:
        os.environ.setdefault("TRITON_LIBCUDA_PATH", str(write_libcuda_stub(Path(directory))))
        for capability in capabilities:
            result = compile_all(CompileJob(specializations, capability, available_cores()))
            print(f"sm_{capability}: compiled {result.compiled} kernels in {result.seconds:.1f} s", flush=True)
            for error in result.errors:
                print(f"sm_{capability}: not compiled: {error}", flush=True)
    return 0


def write_libcuda_stub(directory: Path) -> Path:
    """Writes an empty libcuda.so.1, with which launchers are linked if there is no driver. Returns its directory."""
    library = directory / "libcuda.so.1"
    subprocess.run(["cc", "-shared", "-x", "c", "/dev/null", "-o", str(library)], check=True)
    return directory


def _load_engine(args: argparse.Namespace) -> list[str]:
    """Loads an engine and captures all of its graphs. Returns the specializations of the kernels that it uses."""
    from triton import knobs

    from runtime.config import parse
    from runtime.engine.setup import load_engine

    recorded: dict[str, None] = {}

    def record(**event: Any) -> None:
        recorded[event["compile"]["specialization_data"]] = None

    with _checkpoint(args) as (model, load):
        config = parse(["--model", model, *args.server_args.split()], {}).engine
        knobs.runtime.jit_post_compile_hook = record
        try:
            engine = load_engine(config, load=load)
            while engine.capture_next():
                pass
            engine.close()
        finally:
            knobs.runtime.jit_post_compile_hook = None
    return list(recorded)


@contextmanager
def _checkpoint(args: argparse.Namespace) -> Iterator[tuple[str, Any]]:
    """Yields the checkpoint's directory, and the function that loads its weights."""
    from runtime.weights.loader import load_model

    if args.arch is None:
        yield args.model, load_model
        return
    from runtime.bench.random_weights import load_random, write_files

    with tempfile.TemporaryDirectory(prefix="unmask-warm-") as directory:
        write_files(Path(directory), args.arch)
        yield directory, load_random

"""`python -m runtime.bench TOOL`: each tool is a module of this package, loaded only when it is selected."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Mapping, Sequence

import runtime
from runtime.config.suggestions import SuggestingParser
from runtime.errors import ConfigError, RequestError, is_out_of_memory

TOOLS = {
    "serve": "load a running server over HTTP: throughput, latencies",
    "steps": "time the steps of an architecture with random weights",
    "start": "time from process start to ready, by phase",
    "warm": "compile kernels into a cache that servers read at start",
    "generate": "tokens per second of LLM.generate, and the bound of its steps",
    "tune": "find the fastest tiles of fused MoE on this GPU, and write its table; needs a GPU",
    "ceilings": "peak rates of this GPU in GEMMs and memory reads, to compare steps with; needs a GPU",
    "eval": "accuracy and tokens per forward on the demo tasks",
    "decide": "typed questions: single and joint forwards, orders of options, time per question",
    "sweep": "accuracy over speed, one curve per unmasking algorithm",
}
# Flags that --help lists for tools with many flags. --help-all lists all flags.
COMMON = {
    "serve": (
        "--url --model --arch --random-weights --server-args --clients --rate --requests --max-tokens --json --plot"
    ),
    "steps": (
        "--arch --random-weights --model --batch --context --prompt --dtype --quantization --device --live --json"
    ),
}
EXAMPLES = {
    "serve": "python -m runtime.bench serve --clients 1 8 --requests 64",
    "steps": "python -m runtime.bench steps --arch llada2-mini --random-weights --batch 1 8 --context 512",
}
MODULES = {"ceilings": "device_peaks"}  # of tools whose modules have other names


def main(argv: Sequence[str] | None = None) -> int:
    return run("runtime.bench", TOOLS, argv)


def run(package: str, tools: Mapping[str, str], argv: Sequence[str] | None = None) -> int:
    """Runs a tool of a package. Returns the exit code.

    Args:
        package: dotted name. A module of a tool has `add_arguments` and `main`.
        tools: names, with their descriptions.
        argv: name and flags of a tool; None for the arguments of the process.
    """
    args = list(sys.argv[1:] if argv is None else argv)
    parser = SuggestingParser(
        prog=f"python -m {package}",
        description="\n".join(f"{name:11} {text}" for name, text in tools.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("tool", choices=tools)
    name = parser.parse_args(args[:1]).tool
    runtime.wait_passively()
    module = importlib.import_module(f"{package}.{MODULES.get(name, name)}")
    own = SuggestingParser(prog=f"python -m {package} {name}", description=tools[name])
    module.add_arguments(own)
    if name in COMMON:
        _shorten_help(own, name, everything="--help-all" in args)
    try:
        return int(module.main(own.parse_args(args[1:])) or 0)
    except (ConfigError, RequestError, OSError) as error:
        print(f"error: {error}")
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        print(f"error: out of memory: choose smaller sizes ({first_line(error)})")
    return 1


def _shorten_help(parser: argparse.ArgumentParser, tool: str, *, everything: bool) -> None:
    """Adds --help-all, and hides all but common flags from the help text unless `everything` is set."""
    parser.add_argument("--help-all", action="help", help="show all flags and exit")
    parser.epilog = f"example: {EXAMPLES[tool]}"
    shown = {*COMMON[tool].split(), "--help", "--help-all"}
    for action in parser._actions:
        if not everything and not shown.intersection(action.option_strings):
            action.help = argparse.SUPPRESS


def first_line(error: Exception) -> str:
    """Returns the first line of an error's text, or the name of its class. At most 200 characters."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


if __name__ == "__main__":
    raise SystemExit(main())

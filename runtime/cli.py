"""``unmask``: one command for the server, for models that no server runs, and for the tools.

Modules of a subcommand are imported when it is selected, so that ``--help`` is fast.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import runtime
from runtime.config.suggestions import did_you_mean

COMMANDS = {
    "serve": (
        "runtime.server.cli",
        "serve [MODEL] [flags]: a model over HTTP; MODEL is a directory, org/name or hf://org/name",
    ),
    "models": ("runtime.commands.models", "models [--json] [PATTERN]: published repositories, with their defaults"),
    "fit": ("runtime.commands.fit", "fit [MODEL] [flags]: whether a model fits into the memory of a device"),
    "pull": ("runtime.commands.pull", "pull MODEL [--to DIR] [flags]: download what the server would read"),
    "verify": ("runtime.commands.verify", "verify [MODEL] [flags]: compare ten answers of a model with recorded ones"),
    "chat": ("runtime.chat", "chat [flags]: talk to a running server in the terminal"),
    "bench": ("runtime.bench.__main__", "bench TOOL [flags]: measure speed and accuracy"),
}
_ON_THE_HUB = re.compile(r"[\w.-]+/[\w.-]+(@[\w./-]+)?")


def model(named: str) -> str:
    """Returns the value of ``--model``: a path if it exists, else a hub repository."""
    if "://" in named or Path(named).exists() or not _ON_THE_HUB.fullmatch(named):
        return named
    return f"hf://{named}"


def usage() -> str:
    """Returns the usage text."""
    lines = "\n".join(f"  unmask {text}" for _, text in COMMANDS.values())
    return f"""\
usage:
{lines}
  unmask --version

example:
  unmask serve inclusionAI/LLaDA2.0-mini --port 8000

`unmask COMMAND --help` lists the common flags of a command. `--help-all` lists all of serve and big bench tools."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command. Returns the exit code."""
    args = list(sys.argv[1:] if argv is None else argv)
    if args[:1] in (["--version"], ["version"]):
        print(f"unmask {runtime.__version__}")
        return 0
    if args[:1] in ([], ["--help"], ["--help-all"], ["-h"], ["help"]):
        print(usage())
        return 0
    name, *rest = args
    if name not in COMMANDS:
        hint = did_you_mean(name, COMMANDS)
        print(f"error: unmask {name}: there is no such command{hint}\n{usage()}", file=sys.stderr)
        return 2
    if name == "serve" and rest and not rest[0].startswith("-"):
        rest = ["--model", model(rest[0]), *rest[1:]]
    try:
        return int(importlib.import_module(COMMANDS[name][0]).main(rest) or 0)
    except KeyboardInterrupt:
        sys.stdout.flush()
        what = "interrupted; if files were being downloaded, the next call continues with those that are missing"
        print(f"error: {what}", file=sys.stderr, flush=True)
        os._exit(1)  # Python's own end would wait for the threads of huggingface_hub, which complete their files


if __name__ == "__main__":
    sys.exit(main())

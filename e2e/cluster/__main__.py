"""Starts and ends test clusters from a shell: eval "$(python -m e2e.cluster up)", and `down` when done."""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys

from e2e.cluster import binaries
from e2e.cluster.binaries import say
from e2e.cluster.config import Environment, environment
from e2e.cluster.lifecycle import Options, down, up
from e2e.cluster.process import StartError

_QUOTE = "'\\''"  # for the shell: ends the quoted text, adds an escaped quote, and starts a new quoted text


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m e2e.cluster", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    build = commands.add_parser("build", help="compile programs into the cache; without names, those of `make test`")
    build.add_argument("names", nargs="*", metavar="NAME", help=", ".join(binaries.PROGRAMS))
    start = commands.add_parser("up", help="start a cluster, or find the one that runs; prints `export` lines")
    start.add_argument("--api-only", action="store_true", help="an API server with controllers; needs no root")
    start.add_argument("--no-install", action="store_true", help="leave the chart out")
    start.add_argument("--base", default="", metavar="IMAGE", help="base of both images (default: a Debian made here)")
    end = commands.add_parser("down", help="end a cluster: this id, UNMASK_E2E_CLUSTER, or this checkout's newest")
    end.add_argument("id", nargs="?", default="")
    return parser


def _run(arguments: argparse.Namespace, env: Environment) -> None:
    if arguments.command == "build":
        if unknown := set(arguments.names) - set(binaries.PROGRAMS):
            raise StartError(f"no such program: {', '.join(unknown)}; there are {', '.join(binaries.PROGRAMS)}")
        if not env.kubeconfig or arguments.names:  # an external cluster needs no compiled programs
            binaries.build(arguments.names or binaries.TESTS, env)
    elif arguments.command == "up":
        for name, value in up(env, Options(arguments.api_only, not arguments.no_install, arguments.base)).items():
            print(f"export {name}='{value.replace(chr(39), _QUOTE)}'")
    elif not down(env, arguments.id):
        say("no cluster to end")


def main() -> int:
    arguments = _parser().parse_args()
    try:
        _run(arguments, environment())
    except subprocess.CalledProcessError as error:
        say(f"failed, see above: {shlex.join(map(str, error.cmd))}")
        return 1
    except (StartError, OSError, ValueError) as error:
        say(str(error))
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())

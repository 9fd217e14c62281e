"""Attacks a server that it starts on loopback, and measures how other clients are affected (`make siege`).

Runs every attack alone, each on a fresh server; or, with --all, all at once and with good clients. The exit code is 1
if a bar is missed. The bars are in tests/siege/verdict.py.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import tests.siege.attacks  # noqa: F401 (fills the table)
from tests.siege import measure, report
from tests.siege.registry import ATTACKS
from tests.siege.server import MODULE, SiegeError


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.siege", description=__doc__)
    parser.add_argument("attacks", nargs="*", metavar="ATTACK", help="names (all without any)")
    parser.add_argument("--list", action="store_true", help="name the attacks and end")
    parser.add_argument("--all", action="store_true", help="everything at once, good clients beside it")
    parser.add_argument("--minutes", type=float, default=10.0, help="with --all: for how long (%(default)s)")
    parser.add_argument("--pace", type=float, help="pauses this many times longer (1; with --all 4)")
    parser.add_argument("--seconds", type=float, help="of each attack, in place of its own")
    parser.add_argument("--settle", type=float, default=30.0, help="seconds for memory to return (%(default)s)")
    parser.add_argument("--server-args", default="", help="further flags of the server, in one word")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything that was measured")
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.attacks if name not in ATTACKS]:
        parser.error(f"no attack is called {', '.join(unknown)}; --list names them")
    for name in ("minutes", "pace", "seconds"):
        value = getattr(arguments, name)
        if value is not None and value <= 0:
            parser.error(f"--{name}: more than nothing")
    return arguments


def _ended(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt  # stops the child processes, as on Ctrl-C


def _keep(results: list[dict[str, Any]], file: Path | None) -> None:
    if file is not None:
        file.write_text(json.dumps(results, indent=1) + "\n")


def main() -> int:
    arguments = _arguments()
    attacks = [ATTACKS[name] for name in arguments.attacks or ATTACKS]
    if arguments.list:
        for attack in attacks:
            print(f"{attack.name:22}{attack.rate}{'; with a key' if attack.keyed else ''}; {attack.seconds:g} s")
        return 0
    signal.signal(signal.SIGTERM, _ended)
    options = measure.Options(
        module=MODULE,
        server_args=tuple(arguments.server_args.split()),
        seconds=arguments.seconds,
        settle=arguments.settle,
        pause_factor=arguments.pace or (4.0 if arguments.all else 1.0),
    )
    results = []
    status = 0
    try:
        if arguments.all:
            results.append(measure.all_at_once(attacks, arguments.minutes, options))
            print(report.row(results[-1]))
        else:
            for attack in attacks:
                results.append(measure.one(attack, options))
                _keep(results, arguments.json)
                print(report.row(results[-1]), flush=True)
    except SiegeError as error:
        print(f"error: {error}", file=sys.stderr)
        status = 2
    except KeyboardInterrupt:
        print("ended early", file=sys.stderr)
        status = 130
    if results:
        print(report.foot(results))
        _keep(results, arguments.json)
    return status or int(any(m["missed"] for m in results))

"""Runs tests without some families, strategies or rules: all but these entries' own have to pass (CONTRIBUTING.md)."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.without.entries import DEMO, chosen, copy_tree, entries, named, take_out, with_dependents

ROOT = Path(__file__).parents[2]
RAN = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)


def main(args: list[str]) -> int:
    """0: only tests failed that are the entries' own; 1: others too; 2: nothing was run."""
    at = args.index("--") if "--" in args else len(args)
    parser = argparse.ArgumentParser("python -m tests.without", description=__doc__)
    parser.add_argument("entry", nargs="*", help="what is taken out: a module's name, as models.dream or dream")
    parser.add_argument("--list", action="store_true", help="print what can be taken out")
    asked = parser.parse_args(args[:at])
    if asked.list or not asked.entry:
        print(*(e for e in entries(ROOT) if str(e) not in DEMO), sep="\n")
        return 0 if asked.list else 2
    try:
        gone = chosen(ROOT, asked.entry)
    except ValueError as error:
        parser.error(str(error))
    everything = with_dependents(ROOT, gone)
    print(f"without {', '.join(map(str, gone))}")
    if more := sorted(set(everything) - set(gone)):
        print(f"and {', '.join(map(str, more))}, which need what is out")
    with tempfile.TemporaryDirectory(prefix="without-") as folder:
        tree = Path(folder) / "tree"
        copy_tree(ROOT, tree)
        take_out(tree, everything)
        failures = Path(folder) / "failures"
        failures.touch()
        code = subprocess.run(
            [
                *(sys.executable, "-m", "pytest", "-p", "tests.without.plugin", "-p", "no:cacheprovider"),
                *("--failures", failures, "--continue-on-collection-errors", "--tb=short"),
                *args[at + 1 :],
            ],
            cwd=tree,
            env=os.environ | {"PYTHONPATH": f"{tree}:{tree / 'operator'}"},
        ).returncode
        failed = [json.loads(line) for line in failures.read_text(encoding="utf-8").splitlines()]
    if code not in RAN:
        print(f"pytest ended with {code}: nothing is proved")
        return 2
    names = {entry.name for entry in entries(ROOT)}
    own = {entry.name for entry in everything}
    others = [f for f in failed if not f["whole"] and not named(" ".join([f["test"], *f["fixtures"]]), names) & own]
    for line in failed:
        print(f"NOT OWN: {line['test']} {line['why']}" if line in others else f"own:     {line['test']}")
    print(f"{len(failed) - len(others)} failures are of what was taken out, {len(others)} are not")
    return 1 if others else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Runs tests without some model families, strategies or algorithms (docs/developer/tests.md#removing-an-entry).

All tests except those of the removed entries must pass.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.without.entries import DEMO, Entry, chosen, copy_tree, entries, named, take_out, with_dependents
from tests.without.marks import mark
from tests.without.uses import read_uses

ROOT = Path(__file__).parents[2]
EXECUTED = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
NOTHING_PROVED = 2


def main(args: list[str]) -> int:
    """Returns 0 if all failed tests belong to the removed entries, 1 if others failed too, 2 if no tests ran."""
    at = args.index("--") if "--" in args else len(args)
    parser = argparse.ArgumentParser("python -m tests.without", description=__doc__)
    parser.add_argument("entry", nargs="*", help="what is taken out: a module's name, as models.dream or dream")
    parser.add_argument("--list", action="store_true", help="print what can be taken out")
    parser.add_argument(
        "--uses",
        type=Path,
        metavar="FILE",
        help="without an entry: write which entries each test uses; with one: run by that only what could fail",
    )
    asked = parser.parse_args(args[:at])
    there = [entry for entry in entries(ROOT) if str(entry) not in DEMO]
    if asked.list or not (asked.entry or asked.uses):
        print(*there, sep="\n")
        return 0 if asked.list else NOTHING_PROVED
    if not asked.entry:
        return record(there, asked.uses.absolute(), args[at + 1 :])
    try:
        gone = chosen(ROOT, asked.entry)
    except ValueError as error:
        parser.error(str(error))
    return run(gone, asked.uses, args[at + 1 :])


@contextmanager
def copied() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="without-") as folder:
        tree = Path(folder) / "tree"
        copy_tree(ROOT, tree)
        yield tree


def tests_of(tree: Path, plugin: str, args: Sequence[str | Path]) -> int:
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", f"tests.without.{plugin}", "-p", "no:cacheprovider", *args],
        cwd=tree,
        env=os.environ | {"PYTHONPATH": f"{tree}:{tree / 'operator'}"},
    ).returncode


def record(there: list[Entry], uses: Path, args: Sequence[str]) -> int:
    """Runs all tests and writes the entries that each one uses to the file `uses`.

    Prints per entry how many tests use it, and how many of these do not belong to it.
    """
    uses.unlink(missing_ok=True)
    with copied() as tree:
        mark(tree, there)
        code = tests_of(tree, "recorder", ["--uses", uses, *args])
    tests = read_uses(uses) if uses.exists() else []
    for entry in there:
        gone = with_dependents(ROOT, [entry])
        using = [test for test in tests if any(str(each) in test.uses for each in gone)]
        others = [test for test in using if not test.own(gone, {each.name for each in entries(ROOT)})]
        print(f"{entry}: {len(using)} tests use it, {len(others)} of them are not its own")
    print(f"{len(tests)} tests")
    return 0 if code in EXECUTED else NOTHING_PROVED


def run(gone: list[Entry], uses: Path | None, args: Sequence[str]) -> int:
    everything = with_dependents(ROOT, gone)
    names = {entry.name for entry in entries(ROOT)}
    print(f"without {', '.join(map(str, gone))}")
    if more := sorted(set(everything) - set(gone)):
        print(f"and {', '.join(map(str, more))}, which need what is out")
    with copied() as tree:
        take_out(tree, everything)
        failures, left_out = tree.parent / "failures", tree.parent / "left_out"
        failures.touch()
        separate = (
            [t.id for t in read_uses(uses) if t.own(everything, names) or not t.concerned(everything)] if uses else []
        )
        left_out.write_text("".join(f"{id}\n" for id in separate), encoding="utf-8")
        options = ["--failures", failures, "--leave-out", left_out]
        code = tests_of(tree, "plugin", [*options, "--continue-on-collection-errors", "--tb=short", *args])
        failed = [json.loads(line) for line in failures.read_text(encoding="utf-8").splitlines()]
    if code not in EXECUTED:
        print(f"pytest ended with {code}: nothing is proved")
        return NOTHING_PROVED
    own = {entry.name for entry in everything}
    others = [
        f for f in failed if not f["all_entries"] and not named(" ".join([f["test"], *f["fixtures"]]), names) & own
    ]
    for line in failed:
        print(f"NOT OWN: {line['test']} {line['why']}" if line in others else f"own:     {line['test']}")
    print(f"{len(failed) - len(others)} failures are of what was taken out, {len(others)} are not")
    return 1 if others else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Compares the violations of each rule with baselines, which list the violations that the code still has.

A baseline is a file `baseline/CHECK/PACKAGE.txt` with one `KEY COUNT` per line, sorted. Counts may only shrink:
`python -m tests.layout.baselines` lowers them to the current counts and removes entries that no longer occur. It never
adds or raises one, so a new violation needs a manual edit, which a reviewer sees.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.layout import references, sentences, vocabulary
from tests.layout.check import Check, Finding

FOLDER = Path(__file__).parent / "baseline"
CHECKS = (vocabulary.CHECK, references.CHECK, sentences.CHECK)
MAX_LOCATIONS = 10  # shown per key

Counts = Mapping[str, Mapping[str, int]]  # package -> key -> count


class BaselineError(Exception):
    """A baseline file cannot be read."""


@dataclass(frozen=True)
class Comparison:
    """Differences between a baseline and the code, as messages.

    Attributes:
        grown: keys that are new or occur more often, with their locations and the fix.
        shrunk: keys that occur less often than in the baseline.
    """

    grown: list[str]
    shrunk: list[str]

    def report(self) -> str:
        """Returns the messages with the necessary action, or "" if there are no differences."""
        parts = list(self.grown)
        if self.shrunk:
            parts.append(
                "Some violations are gone. Run `python -m tests.layout.baselines` and commit the lower baselines:\n"
                + "\n".join(f"  {message}" for message in self.shrunk)
            )
        return "\n".join(parts)


def count(findings: Iterable[Finding]) -> Counts:
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for finding in findings:
        counts[finding.package][finding.key] += 1
    return counts


def load(folder: Path) -> Counts:
    """Reads the baselines of one check.

    Raises:
        BaselineError: a row is not `KEY COUNT` with a count of at least 1, or a key has two rows.
    """
    counts: dict[str, dict[str, int]] = {}
    for file in sorted(folder.glob("*.txt")):
        rows = counts.setdefault(file.stem, {})
        for number, row in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
            key, _, value = row.rpartition(" ")
            if not key or not value.isdecimal() or int(value) < 1:
                raise BaselineError(
                    f"{file}:{number}: {row!r} is not `KEY COUNT`. After a merge conflict, resolve it or, in a "
                    "reviewed merge, write the baselines anew with `python -m tests.layout.baselines --write`."
                )
            if key in rows:
                raise BaselineError(f"{file}:{number}: {key!r} has two rows. Keep the lower one.")
            rows[key] = int(value)
    return counts


def save(folder: Path, counts: Counts) -> None:
    """Writes the baselines of one check and deletes the files of packages without entries."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in folder.glob("*.txt"):
        if not counts.get(file.stem):
            file.unlink()
    for package, rows in counts.items():
        if rows:
            text = "".join(f"{key} {value}\n" for key, value in sorted(rows.items()))
            (folder / f"{package}.txt").write_text(text, encoding="utf-8")


def lower(baseline: Counts, current: Counts) -> Counts:
    """Returns the baseline with each count lowered to the current one; keys that no longer occur are removed."""
    return {
        package: {
            key: min(allowed, current[package][key])
            for key, allowed in rows.items()
            if current.get(package, {}).get(key, 0)
        }
        for package, rows in baseline.items()
    }


def compare(check: Check, findings: Iterable[Finding], baseline: Counts) -> Comparison:
    locations: dict[tuple[str, str], list[Finding]] = defaultdict(list)
    for finding in sorted(findings):
        locations[finding.package, finding.key].append(finding)
    grown = []
    for (package, key), found in locations.items():
        allowed = baseline.get(package, {}).get(key, 0)
        if len(found) > allowed:
            grown.append(_growth(check, key, found, f"{check.name}/{package}.txt", allowed))
    shrunk = [
        f"{check.name}/{package}.txt: {key}: {allowed} -> {now}"
        for package, rows in baseline.items()
        for key, allowed in rows.items()
        if (now := len(locations.get((package, key), ()))) < allowed
    ]
    return Comparison(grown, shrunk)


def _growth(check: Check, key: str, found: Sequence[Finding], file: str, allowed: int) -> str:
    shown = "".join(f"\n  {finding}" for finding in found[:MAX_LOCATIONS])
    if len(found) > MAX_LOCATIONS:
        shown += f"\n  and {len(found) - MAX_LOCATIONS} more"
    known = f"baseline/{file} allows {allowed}" if allowed else f"not in baseline/{file}"
    return f"{key}: {len(found)} found, {known}. {check.advice(key)}{shown}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.layout.baselines",
        description="Lowers the baselines to what the code has. It adds no entry and raises no count.",
    )
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--check", action="store_true", help="report differences and change nothing")
    mode.add_argument(
        "--write",
        action="store_true",
        help="write all baselines anew, with new entries and raised counts. WARNING: this accepts every new violation. "
        "Use it only in a reviewed merge whose baselines conflict, and read the difference that it makes",
    )
    options = parser.parse_args(arguments)
    try:
        return _run(options.check, options.write)
    except BaselineError as error:
        print(error, file=sys.stderr)
        return 2


def _run(check_only: bool, write: bool) -> int:
    failed = False
    for check in CHECKS:
        findings = list(check.find())
        folder = FOLDER / check.name
        if write:
            save(folder, count(findings))
            continue
        baseline = load(folder)
        comparison = compare(check, findings, baseline)
        if check_only:
            failed |= bool(comparison.report())
            print(comparison.report(), end="\n" if comparison.report() else "")
            continue
        save(folder, lower(baseline, count(findings)))
        for message in comparison.grown:
            failed = True
            print(message)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())

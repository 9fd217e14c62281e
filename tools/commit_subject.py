"""Checks the subject of a commit message: `area: imperative summary`, at most 72 characters.

pre-commit runs it on every commit (stage commit-msg): `python -m tools.commit_subject FILE`.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

MAX_LENGTH = 72
FORM = re.compile(r"[a-z0-9/_.-]+: \S.*")
# Subjects that git writes: of merges and reverts, and of commits that a rebase folds into others.
WRITTEN_BY_GIT = re.compile(
    r"Merge (branch|branches|remote-tracking branch|tag|commit|pull request) .+"
    r'|(Revert|Reapply) ".+"'
    r"|(fixup|squash|amend)! .+"
)
SCISSORS = "# ------------------------ >8 ------------------------"


def subject_of(message: str) -> str:
    """Returns the first line that is neither blank nor a comment, or "" if there is none."""
    for line in message.splitlines():
        if line == SCISSORS:
            break
        if line.strip() and not line.startswith("#"):
            return line.rstrip()
    return ""


def problem_of(subject: str) -> str | None:
    """Returns what is wrong with a subject and how to fix it, or None."""
    if not subject:
        return "the message has no subject; write `area: imperative summary`"
    if WRITTEN_BY_GIT.fullmatch(subject):
        return None
    if not FORM.fullmatch(subject):
        return (
            "the subject is not `area: imperative summary`; the area is of a-z, 0-9, `/`, `_`, `.` and `-`, "
            "for example `engine: overlap output processing with the next forward`"
        )
    if subject.endswith("."):
        return "the subject ends with a period; remove it"
    if len(subject) > MAX_LENGTH:
        return f"the subject has {len(subject)} characters, at most {MAX_LENGTH} are allowed; move the why to the body"
    return None


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.commit_subject", description="Checks the subject of a commit message."
    )
    parser.add_argument("file", type=Path, help="the commit message")
    try:
        subject = subject_of(parser.parse_args(arguments).file.read_text(encoding="utf-8"))
    except OSError as error:
        parser.error(str(error))
    problem = problem_of(subject)
    if problem:
        print(f"{subject}\n{problem}. See CONTRIBUTING.md#commits.", file=sys.stderr)
    return int(problem is not None)


if __name__ == "__main__":
    sys.exit(main())

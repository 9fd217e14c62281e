"""Checks whether the repository can be released: ``python -m tools.release`` (`make release-check`).

docs/developer/release.md is the checklist.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PLACEHOLDER = "fill-in.invalid"  # a host that cannot exist (RFC 2606), so nothing is sent to a place that is not filled
PLACEHOLDERS = (
    "CODE_OF_CONDUCT.md",
    "SECURITY.md",
    "charts/unmask-crds/Chart.yaml",
    "charts/unmask-operator/Chart.yaml",
)
VERSIONS = {  # files, and where they have the version
    "runtime/__init__.py": r'^__version__ = "(.*)"$',
    "operator/unmask_operator/settings.py": r'^VERSION = "(.*)"$',
    "Dockerfile": r"^ARG VERSION=(.*)$",
    "compose.yaml": r"unmask-runtime:([\d.]+)",
    "examples/client-job.yaml": r"unmask-runtime:([\d.]+)",
    "charts/unmask-crds/Chart.yaml": r"^(?:version|appVersion): (.*)$",
    "charts/unmask-operator/Chart.yaml": r"^(?:version|appVersion): (.*)$",
}


def unfilled(root: Path) -> Iterator[str]:
    """Yields each marked place that is not filled, with its file and line."""
    for name in PLACEHOLDERS:
        for number, line in enumerate((root / name).read_text(encoding="utf-8").splitlines(), start=1):
            if PLACEHOLDER in line:
                yield f"{name}:{number}: not filled: {line.strip()}"


def other_versions(root: Path) -> Iterator[str]:
    """Yields each version that differs from that of pyproject.toml, and a changelog without a date."""
    version = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    for name, pattern in VERSIONS.items():
        found = re.findall(pattern, (root / name).read_text(encoding="utf-8"), re.MULTILINE)
        if set(found) != {version}:
            yield f"{name}: the version is {', '.join(found) or 'missing'}, but {version} in pyproject.toml"
    heading = re.search(r"^## (.*)$", (root / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    if heading is None or not re.fullmatch(rf"{re.escape(version)} \(\d{{4}}-\d\d-\d\d\)", heading[1]):
        yield f'CHANGELOG.md: the first heading is not "## {version} (YEAR-MONTH-DAY)"'


def problems(root: Path = ROOT) -> list[str]:
    """Returns all reasons against a release."""
    return [*unfilled(root), *other_versions(root)]


if __name__ == "__main__":
    found = problems()
    print(*found, sep="\n")
    sys.exit(bool(found))

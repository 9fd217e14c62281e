"""Checks whether the repository can be released: ``python -m tools.release [TAG]`` (`make release-check`).

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
WORKFLOW = ".github/workflows/release.yaml"
PLACEHOLDERS = (
    WORKFLOW,
    "CODE_OF_CONDUCT.md",
    "SECURITY.md",
    "charts/unmask-crds/Chart.yaml",
    "charts/unmask-operator/Chart.yaml",
    "charts/artifacthub-repo.yml",
)
VERSIONS = {  # files, and where they have the version
    "runtime/__init__.py": r'^__version__ = "(.*)"$',
    "operator/unmask_operator/settings.py": r'^VERSION = "(.*)"$',
    "Dockerfile": r"^ARG VERSION=(.*)$",
    "compose.yaml": r"unmask-runtime:([\d.]+)",
    "examples/client-job.yaml": r"unmask-runtime:([\d.]+)",
    "charts/unmask-crds/Chart.yaml": r"^(?:version|appVersion): (.*)$",
    "charts/unmask-operator/Chart.yaml": r"(?:^(?:version|appVersion): |image: \S+:)(.*)$",
}


def unfilled(root: Path) -> Iterator[str]:
    """Yields each marked place that is not filled, with its file and line."""
    for name in PLACEHOLDERS:
        for number, line in enumerate((root / name).read_text(encoding="utf-8").splitlines(), start=1):
            if PLACEHOLDER in line:
                yield f"{name}:{number}: not filled: {line.strip()}"


def other_versions(root: Path, version: str) -> Iterator[str]:
    """Yields each version that differs from that of pyproject.toml, and a changelog without a date."""
    for name, pattern in VERSIONS.items():
        found = re.findall(pattern, (root / name).read_text(encoding="utf-8"), re.MULTILINE)
        if set(found) != {version}:
            yield f"{name}: the version is {', '.join(found) or 'missing'}, but {version} in pyproject.toml"
    heading = re.search(r"^## (.*)$", (root / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    if heading is None or not re.fullmatch(rf"{re.escape(version)} \(\d{{4}}-\d\d-\d\d\)", heading[1]):
        yield f'CHANGELOG.md: the first heading is not "## {version} (YEAR-MONTH-DAY)"'


def movable(root: Path) -> Iterator[str]:
    """Yields each action of the workflow without a commit, and each image without a digest. They could change."""
    for number, line in enumerate((root / WORKFLOW).read_text(encoding="utf-8").splitlines(), start=1):
        pinned = r"uses: \S+@[0-9a-f]{40}( |$)" if "uses: " in line else r"@sha256:[0-9a-f]{64}$"
        used = "uses: " in line or re.match(r" +(BASE|BUILDKIT|SBOM_GENERATOR): ", line)
        if used and PLACEHOLDER not in line and not re.search(pinned, line):
            yield f"{WORKFLOW}:{number}: has no commit or digest after the @: {line.strip()}"


def problems(root: Path = ROOT, tag: str | None = None) -> list[str]:
    """Returns all reasons against a release; with a tag also if it is not that of the version."""
    version = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    wrong = [] if tag in (None, f"v{version}") else [f"the tag is {tag}, but v{version} is that of pyproject.toml"]
    return [*wrong, *unfilled(root), *movable(root), *other_versions(root, version)]


if __name__ == "__main__":
    found = problems(tag=sys.argv[1] if len(sys.argv) > 1 else None)
    print(*found, sep="\n")
    sys.exit(bool(found))

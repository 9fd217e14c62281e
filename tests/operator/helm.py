"""Runs helm as a user does: renders charts, and installs releases on a cluster."""

import json
import subprocess
from pathlib import Path
from typing import Any

import yaml

from e2e.cluster.binaries import build
from e2e.cluster.config import environment

CHARTS = Path(__file__).parents[2] / "charts"
CHART = CHARTS / "unmask-operator"
CRDS = CHARTS / "unmask-crds"
NAMESPACE = "unmask-system"
REGISTRY = {"global.imageRegistry": "registry.example/team"}  # without a registry the operator's chart is rejected


def helm(*arguments: str) -> str:
    """Runs helm and returns its output. Compiles it if the cache lacks it.

    Raises:
        ValueError: helm failed; the message is its output.
    """
    program = build(["helm"], environment())["helm"]
    done = subprocess.run([program, *arguments], capture_output=True, text=True)
    if done.returncode:
        raise ValueError(done.stdout + done.stderr)
    return done.stdout


def sets(values: dict[str, Any]) -> list[str]:
    """Returns command line arguments that set these values. Keys are dotted paths."""
    return [word for path, value in values.items() for word in ("--set-json", f"{path}={json.dumps(value)}")]


def render(version: str = "1.34.4", /, **values: Any) -> list[dict[str, Any]]:
    """Returns the objects of a release `unmask-operator` with REGISTRY. Two underscores in a name mean a dot."""
    return _render(CHART, version, {**REGISTRY, **_dotted(values)})


def render_crds(**values: Any) -> list[dict[str, Any]]:
    """Returns the objects of a release `unmask-crds`."""
    return _render(CRDS, "1.34.4", _dotted(values))


def _dotted(values: dict[str, Any]) -> dict[str, Any]:
    return {name.replace("__", "."): value for name, value in values.items()}


def _render(chart: Path, version: str, values: dict[str, Any]) -> list[dict[str, Any]]:
    options = ("--namespace", NAMESPACE, "--kube-version", version)
    return parse_objects(helm("template", chart.name, str(chart), *options, *sets(values)))


def parse_objects(text: str) -> list[dict[str, Any]]:
    """Returns the objects of rendered manifests."""
    return [obj for obj in yaml.safe_load_all(text) if obj]

"""Bill of materials of an image's Python packages, as CycloneDX, exported by uv from the constraints.

uv exports the locked packages of a project. The requirements of a temporary project are the constraints. The packages
of the base image are not included.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

CONSTRAINTS = Path(__file__).parents[1] / "constraints"
PIN = re.compile(r"^([a-z0-9][\w.-]*)==([^\s;]+)( ; [^\\\n]+?)? *\\?$", re.MULTILINE)


def project(image: str, version: str, constraints: str) -> str:
    """Returns the pyproject.toml of a project with these requirements, for the platform of the images."""
    pins = [f"{name}=={pin}{marker}" for name, pin, marker in PIN.findall(constraints)]
    return (
        f'[project]\nname = "unmask-{image}"\nversion = "{version}"\nrequires-python = ">=3.11"\n'
        f"dependencies = {json.dumps(pins)}\n"
        "[tool.uv]\nenvironments = [\"sys_platform == 'linux' and implementation_name == 'cpython'\"]\n"
    )


def differences(bill: str, constraints: str) -> list[str]:
    """Returns packages of the bill that are not in the constraints, and unconditional constraints that it lacks."""
    listed = {(part["name"], part["version"]) for part in json.loads(bill)["components"]}
    pins = {(name, pin): marker for name, pin, marker in PIN.findall(constraints)}
    wrong = (listed - pins.keys()) | {pin for pin, marker in pins.items() if not marker and pin not in listed}
    return sorted(f"{name} {version}" for name, version in wrong)


def write(uv: Path, image: str, version: str, to: Path) -> None:
    """Writes the bill. Raises CalledProcessError if uv fails, for example without an index."""
    constraints = (CONSTRAINTS / f"{image}.txt").read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "pyproject.toml").write_text(project(image, version, constraints), encoding="utf-8")
        command = [str(uv.absolute()), "export", "--quiet", "--format", "cyclonedx1.5"]
        bill = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, text=True, check=True).stdout
    if wrong := differences(bill, constraints):
        raise ValueError(f"the bill of materials is not that of constraints/{image}.txt: {', '.join(wrong)}")
    to.parent.mkdir(parents=True, exist_ok=True)
    to.write_text(bill, encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tools.sbom", description="Writes the SBOM of an image.")
    parser.add_argument("uv", type=Path, help="the uv program")
    parser.add_argument("image", choices=("operator", "runtime"))
    parser.add_argument("version")
    parser.add_argument("to", type=Path, help="the file to write")
    options = parser.parse_args()
    try:
        write(options.uv, options.image, options.version, options.to)
    except (subprocess.CalledProcessError, OSError, ValueError) as error:
        sys.exit(f"{options.to}: {error}")
    print(options.to)

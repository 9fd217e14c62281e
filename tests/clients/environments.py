"""Builds the environments of clients, each from the client's lock alone, and again when the lock changes."""

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.clients.catalogue import FOLDER, Client

HOME = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "unmask" / "clients"
SECONDS = 1200  # time limit for each command that builds one
UV = Path(sys.executable).parent / "uv"


class Missing(Exception):
    """A tool that a client's language needs is missing on this machine."""


def environment(client: Client) -> Path:
    """Returns the folder of the client's environment, which is built if it does not exist. Raises Missing."""
    tool = {"python": str(UV), "node": "npm", "go": "go"}[client.language]
    if shutil.which(tool) is None:
        raise Missing(f"{client.name} needs {tool}")
    made_of = [client.lock.read_bytes(), f"{sys.version_info[:2]}".encode()]
    folder = HOME / f"{client.name}-{hashlib.sha256(b' '.join(made_of)).hexdigest()[:16]}"
    HOME.mkdir(parents=True, exist_ok=True)
    with _alone(client.name):
        if not (folder / ".complete").exists():
            for old in HOME.glob(f"{client.name}-{'[0-9a-f]' * 16}"):
                shutil.rmtree(old)
            folder.mkdir()
            {"python": _python, "node": _node, "go": _go}[client.language](client, folder)
            (folder / ".complete").touch()
    return folder


@contextmanager
def _alone(name: str) -> Iterator[None]:
    with (HOME / f".{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _run(*command: str | Path, cwd: Path, **env: str) -> None:
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=os.environ | env, capture_output=True, text=True, timeout=SECONDS
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))}: {(done.stderr or done.stdout)[-4000:]}")


def _python(client: Client, folder: Path) -> None:
    _run(UV, "venv", "--quiet", "--python", sys.executable, folder / "venv", cwd=folder)
    install = (UV, "pip", "install", "--quiet", "--require-hashes", "--no-deps")
    _run(*install, "--python", folder / "venv" / "bin" / "python", "-r", client.lock, cwd=folder)


def _node(client: Client, folder: Path) -> None:
    for name in ("package.json", "package-lock.json"):
        shutil.copy(client.folder / name, folder)
    _run("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", cwd=folder)


def _go(client: Client, folder: Path) -> None:
    _run("go", "mod", "download", cwd=client.folder, GOTOOLCHAIN="local")


def command(client: Client, folder: Path) -> tuple[list[str], dict[str, str]]:
    """Returns the command that runs the client's script in its environment, and the variables that it needs."""
    script = {"python": "client.py", "node": "client.mjs", "go": "client.go"}[client.language]
    if client.language == "python":
        path = f"{folder / 'venv' / 'bin'}{os.pathsep}{os.environ['PATH']}"
        variables = {"PATH": path, "PYTHONPATH": str(FOLDER / "shared"), "PYTHONDONTWRITEBYTECODE": "1"}
        return [str(folder / "venv" / "bin" / "python"), str(client.folder / script)], variables
    if client.language == "node":  # node looks for modules in the folder of the script
        for source in (client.folder / script, *(FOLDER / "shared").glob("*.mjs")):
            shutil.copy(source, folder)
        return ["node", str(folder / script)], {
            "PATH": f"{folder / 'node_modules/.bin'}{os.pathsep}{os.environ['PATH']}"
        }
    _run("go", "build", "-o", folder / "client", ".", cwd=client.folder, GOTOOLCHAIN="local", GOFLAGS="-mod=readonly")
    return [str(folder / "client")], {}


def lock(client_folder: Path) -> None:
    """Resolves a client's lock again: names, versions and hashes, without the registries that they come from."""
    if (client_folder / "package.json").exists():
        path = client_folder / "package-lock.json"
        path.unlink(missing_ok=True)
        _run("npm", "install", "--package-lock-only", "--omit-lockfile-registry-resolved", "--ignore-scripts",
             cwd=client_folder)  # fmt: skip
        recorded = json.loads(path.read_text(encoding="utf-8"))
        for package in recorded["packages"].values():
            package.pop("funding", None)
        path.write_text(json.dumps(recorded, indent=2) + "\n", encoding="utf-8")
    elif (client_folder / "go.mod").exists():
        _run("go", "mod", "tidy", cwd=client_folder, GOTOOLCHAIN="local")
    else:
        from tests.clients.catalogue import client

        requirements = client_folder / ".requires"
        requirements.write_text("\n".join(client(client_folder).requires), encoding="utf-8")
        try:
            _run(UV, "pip", "compile", "-q", "--universal", "--python-version", "3.11", "--generate-hashes",
                 "--no-header", "--no-annotate", "--no-emit-index-url", "--no-emit-find-links", ".requires", "-o",
                 "lock.txt", cwd=client_folder)  # fmt: skip
        finally:
            requirements.unlink()

"""Builds the images of a cluster with buildah from the repository's Dockerfile, and loads them into containerd."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from e2e.cluster.binaries import say
from e2e.cluster.node.containers import PAUSE, Containers

ROOT = Path(__file__).parents[3]
_SUITE = "bookworm"
_INCLUDE = "ca-certificates,python3"
_TRIM = ("var/lib/apt/lists", "var/cache/apt", "usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/info")


class Images:
    """Builds images in buildah's store.

    Args:
        cache: Folder that keeps the base image between builds.
        base: The Dockerfile's BASE; if empty, debootstrap makes a small Debian.
    """

    def __init__(self, cache: Path, base: str = "") -> None:
        self._cache, self._base = cache, base

    def build_pod(self, program: Path) -> str:
        """Builds the image of the pause container and of pods that tests run. Returns its name."""
        with tempfile.TemporaryDirectory() as folder:
            shutil.copy(program, Path(folder) / "pod")
            (Path(folder) / "Dockerfile").write_text('FROM scratch\nCOPY pod /pod\nUSER 65532\nENTRYPOINT ["/pod"]\n')
            self._buildah("bud", "--layers", "--tag", PAUSE, folder)
        return PAUSE

    def build(self, target: str, name: str) -> str:
        """Builds a target of the Dockerfile as image `name`. Returns the name."""
        say(f"building {name}")
        arguments = [
            "--layers",
            "--target",
            target,
            "--tag",
            name,
            "--build-arg",
            f"BASE={self._base or self._debian()}",
            "--build-arg",
            "KERNEL_CAPABILITIES=90",  # one GPU generation is enough to test this build step; the nodes have no GPU
        ]
        if Path("/etc/ssl/certs/ca-certificates.crt").exists():  # the machine may use its own CA
            arguments += ["--volume", "/etc/ssl/certs:/etc/ssl/certs:ro"]
        self._buildah("bud", *arguments, str(ROOT))
        return name

    def identity(self, name: str) -> str:
        """Returns the id of an image, which depends on its content."""
        return self._buildah("inspect", "--type", "image", "--format", "{{.FromImageID}}", name)

    def load(self, name: str, containers: Containers, store: Path) -> None:
        """Loads an image into containerd unless an earlier cluster has loaded the same image."""
        loaded = store / "loaded.json"
        known: dict[str, str] = json.loads(loaded.read_text()) if loaded.exists() else {}
        identity = self.identity(name)
        if known.get(name) == identity and containers.has_image(name):
            return
        say(f"loading {name}")
        with tempfile.TemporaryDirectory(dir=self._cache) as folder:  # another cluster may load it at the same time
            archive = Path(folder) / "image.tar"
            self._buildah("push", "--quiet", name, f"docker-archive:{archive}:{name}")
            containers.load(name, archive)
        loaded.write_text(json.dumps({**known, name: identity}))

    def _debian(self) -> str:
        """Returns the name of a base image: a minimal Debian with Python, which is made once and kept in the cache."""
        recipe = hashlib.sha256(repr((_SUITE, _INCLUDE, _TRIM)).encode()).hexdigest()[:8]
        name, archive = f"localhost/unmask-e2e/base:{recipe}", self._cache / f"base-{_SUITE}-{recipe}.tar"
        if not archive.exists():
            self._debootstrap(archive)
        if subprocess.run(["buildah", "inspect", "--type", "image", name], capture_output=True).returncode:
            with tempfile.TemporaryDirectory(dir=self._cache) as folder:
                os.link(archive, Path(folder) / "base.tar")
                (Path(folder) / "Dockerfile").write_text("FROM scratch\nADD base.tar /\n")
                self._buildah("bud", "--tag", name, folder)
        return name

    def _debootstrap(self, archive: Path) -> None:
        say(f"making a base image: Debian {_SUITE} (about a minute, once)")
        with tempfile.TemporaryDirectory(dir=self._cache) as folder:
            root = Path(folder) / "root"
            command = ["debootstrap", "--variant=minbase", f"--include={_INCLUDE}", _SUITE, str(root)]
            subprocess.run(command, stdout=subprocess.DEVNULL, stderr=sys.stderr, check=True)
            for path in _TRIM:
                for entry in (root / path).iterdir():
                    shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
            partial = archive.with_suffix(".partial")
            subprocess.run(["tar", "--numeric-owner", "-C", str(root), "-cf", str(partial), "."], check=True)
            partial.rename(archive)

    def _buildah(self, *arguments: str) -> str:
        """Runs buildah. Returns its stdout, except for builds, whose output goes to stderr."""
        environment = {**os.environ, "BUILDAH_ISOLATION": "chroot"}  # crun refuses hybrid cgroups
        if arguments[0] == "bud":
            subprocess.run(["buildah", *arguments], env=environment, stdout=sys.stderr, check=True)
            return ""
        return subprocess.run(
            ["buildah", *arguments], env=environment, stdout=subprocess.PIPE, text=True, check=True
        ).stdout.strip()

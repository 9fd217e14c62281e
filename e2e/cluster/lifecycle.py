"""Implements `up` and `down`. A cluster keeps running after the command that starts it has ended."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from e2e.cluster import binaries, kubeconfig
from e2e.cluster.binaries import say
from e2e.cluster.config import Environment
from e2e.cluster.control_plane import LOOPBACK_FLAGS, ControlPlane, Site
from e2e.cluster.install import install_chart
from e2e.cluster.node.images import ROOT, Images
from e2e.cluster.node.node import Node
from e2e.cluster.node.packages import install_packages
from e2e.cluster.process import StartError, free_ports, stop
from e2e.cluster.records import Record, choose, claim, load_all

_VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
IMAGES = {target: f"docker.io/library/unmask-{target}:{_VERSION}" for target in ("operator", "runtime")}
RUNTIME_NEXT = f"{IMAGES['runtime']}-next"  # the same image under a second tag, for tests of an upgrade


@dataclass(frozen=True)
class Options:
    """Options of `up`.

    Attributes:
        api_only: start only an API server with controllers, without a node, images and the chart.
        install: install the chart.
        base: the Dockerfile's base image; if empty, `up` builds one.
    """

    api_only: bool = False
    install: bool = True
    base: str = ""


def up(env: Environment, options: Options) -> dict[str, str]:
    """Returns the variables of a running cluster. Starts one unless this checkout has a running one.

    If the start fails or is interrupted (Ctrl-C, SIGTERM), the new cluster is removed.
    """
    if env.kubeconfig and not env.cluster:
        access = kubeconfig.read(env.kubeconfig)
        say(f"using the cluster of {env.kubeconfig}: context {access.context}, {access.server}; nothing is started")
        return {"KUBECONFIG": str(env.kubeconfig), "UNMASK_E2E_KUBECONFIG": str(env.kubeconfig)}
    clean_up_the_dead(env)
    level = "api" if options.api_only else "node"
    record = choose(env.cache, str(ROOT), env.cluster, level)
    if record and record.is_starting():
        raise StartError(f"{record.id} is being started by process {record.owner}; wait until it is done")
    if record and not record.is_complete():
        say(f"{record.id}: some of it has ended; starting anew")
        _destroy(record, env)
        record = None
    fresh = record is None
    with _terminated_is_an_exception():
        record = record or claim(env.cache, str(ROOT), level)
        try:
            return _api(record, env) if options.api_only else _node(record, env, options)
        except BaseException:
            if fresh:
                say(f"{record.id}: ending what was started")
                _destroy(record, env)
            raise


def down(env: Environment, cluster_id: str = "") -> bool:
    """Ends the cluster with this id, that of UNMASK_E2E_CLUSTER, or this checkout's newest; False if there is none."""
    record = choose(env.cache, str(ROOT), cluster_id or env.cluster)
    if record:
        say(f"{record.id}: ending")
        _destroy(record, env)
    return record is not None


def clean_up_the_dead(env: Environment) -> None:
    """Removes what is left of clusters that were killed or that ended with a restart of the machine."""
    for record in load_all(env.cache):
        if record.dead():
            say(f"{record.id}: is dead; removing what is left of it")
            _destroy(record, env)


def _api(record: Record, env: Environment) -> dict[str, str]:
    if record.exports:
        return record.exports
    programs = binaries.build([*binaries.API_SERVER, *binaries.CONTROLLERS, "kubectl"], env)
    port, client, peer, manager, scheduler = free_ports(5)
    site = Site(record.directory, "127.0.0.1", port, (client, peer), (manager, scheduler))

    def remember(plane: ControlPlane) -> None:
        record.daemons = list(plane.daemons)
        record.save()

    plane = ControlPlane(site, programs, started=remember)
    plane.start_etcd()
    plane.start_api_server(*LOOPBACK_FLAGS)
    plane.start_controller_manager()
    return _finish(record, plane.admin, programs["kubectl"], env)


def _node(record: Record, env: Environment, options: Options) -> dict[str, str]:
    install_packages()
    programs = binaries.build(binaries.NODE, env)
    images, node = Images(env.cache, options.base), Node(record, env.cache)
    names = [images.build_pod(programs["pod"])]
    names += [images.build(target, name) for target, name in IMAGES.items()]
    if not record.exports:
        node.start_containers()
    for name in names:
        images.load(name, node.containers, node.store)
    node.containers.tag(IMAGES["runtime"], RUNTIME_NEXT)
    if not record.exports:
        say("starting the cluster")
        _finish(record, node.start(programs), programs["kubectl"], env)
    record.exports |= {f"UNMASK_E2E_IMAGE_{target.upper()}": name for target, name in IMAGES.items()}
    record.exports["UNMASK_E2E_IMAGE_RUNTIME_NEXT"] = RUNTIME_NEXT
    record.save()
    if options.install:
        install_chart(programs["helm"], Path(record.exports["KUBECONFIG"]), images.identity(IMAGES["operator"]))
    return record.exports


def _finish(record: Record, admin: Path, kubectl: Path, env: Environment) -> dict[str, str]:
    folders = {str(kubectl.parent), str(binaries.path_of("helm", env).parent)}
    path = [folder for folder in env.path.split(os.pathsep) if folder not in folders]
    record.exports = {
        "KUBECONFIG": str(admin),
        "UNMASK_E2E_KUBECONFIG": str(admin),
        "PATH": os.pathsep.join([*sorted(folders), *path]),
        "UNMASK_E2E_CLUSTER": record.id,
    }
    record.owner = 0
    record.save()
    return record.exports


def _destroy(record: Record, env: Environment) -> None:
    if record.level == "node":
        Node(record, env.cache).destroy()
    else:
        stop(record.daemons[::-1], grace=2)
        shutil.rmtree(record.directory)


@contextlib.contextmanager
def _terminated_is_an_exception() -> Iterator[None]:
    def leave(number: int, frame: object) -> NoReturn:
        raise StartError(f"ended by signal {number}")

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)

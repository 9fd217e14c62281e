"""Tests of those parts of e2e.cluster that need no running cluster."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID

from e2e.cluster import binaries, kubeconfig, records
from e2e.cluster.binaries import PROGRAMS, MissingProgramError
from e2e.cluster.config import Environment, environment
from e2e.cluster.node.network import Network
from e2e.cluster.pki import Authority
from e2e.cluster.process import Daemon, StartError, spawn, stop, wait_for
from tests.wait import wait_until


def env(cache: Path, **more: object) -> Environment:
    return Environment(**{"cache": cache, "assets": None, "kubeconfig": None, "cluster": "", "path": "/bin", **more})  # type: ignore[arg-type]


def test_the_error_names_a_variable_whose_path_does_not_exist(tmp_path: Path) -> None:
    assert environment({"KUBEBUILDER_ASSETS": str(tmp_path), "KUBECONFIG": "/nowhere"}).assets == tmp_path
    for name in ("KUBEBUILDER_ASSETS", "UNMASK_E2E_KUBECONFIG"):
        with pytest.raises(ValueError, match=name):
            environment({name: "/does/not/exist"})


def test_every_program_has_a_pinned_version() -> None:
    for name, program in PROGRAMS.items():
        assert program.version, name
        if program.origin:
            tools = (binaries.GO / program.folder / "go.mod").read_text()
            assert program.package in tools, name
            assert (binaries.GO / program.folder / "go.sum").exists()


def test_programs_that_make_test_compiles_are_in_one_module() -> None:
    """With two modules, two versions of the Kubernetes libraries would be compiled, which takes minutes."""
    assert {PROGRAMS[name].folder for name in binaries.TESTS if PROGRAMS[name].origin} == {"kubernetes"}


def test_prebuilt_programs_are_used_if_they_exist(tmp_path: Path) -> None:
    assets, cache = tmp_path / "assets", tmp_path / "cache"
    assets.mkdir()
    (assets / "etcd").touch()
    here = env(cache, assets=assets)
    assert binaries.find(["etcd"], here) == {"etcd": assets / "etcd"}
    with pytest.raises(MissingProgramError, match=r"kubectl.*e2e\.cluster build kubectl"):
        binaries.find(["etcd", "kubectl"], here)


def test_certificates_name_users_groups_and_hosts() -> None:
    pair = Authority("test").issue("alice", ["a", "b"], hosts=["10.0.0.1", "web.local"])
    certificate = x509.load_pem_x509_certificate(pair.certificate)
    names = {
        oid: [a.value for a in certificate.subject.get_attributes_for_oid(oid)]
        for oid in (NameOID.COMMON_NAME, NameOID.ORGANIZATION_NAME)
    }
    assert names == {NameOID.COMMON_NAME: ["alice"], NameOID.ORGANIZATION_NAME: ["a", "b"]}
    hosts = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(host.value) for host in hosts] == ["10.0.0.1", "web.local"]


def test_written_kubeconfigs_can_be_read(tmp_path: Path) -> None:
    authority = Authority("test")
    path = kubeconfig.write(
        tmp_path / "k", "https://10.0.0.1:6443", authority.certificate, user="admin", token="secret"
    )
    access = kubeconfig.read(path)
    assert access.server == "https://10.0.0.1:6443"
    assert access.headers == {"Authorization": "Bearer secret"}
    assert access.authority == authority.certificate
    assert path.stat().st_mode & 0o077 == 0
    kubeconfig.read(
        kubeconfig.write(tmp_path / "c", "https://h", authority.certificate, user="u", pair=authority.issue("u"))
    )


def test_the_error_for_an_unusable_kubeconfig_has_the_cause(tmp_path: Path) -> None:
    path = kubeconfig.write(tmp_path / "k", "https://h", b"", user="cloud", token="x")
    path.write_text(path.read_text().replace("token: x", "exec: {command: login}"))
    with pytest.raises(ValueError, match="no credentials; the user needs"):
        kubeconfig.read(path)
    path.write_text(path.read_text().replace("current-context: unmask-e2e", "current-context: gone"))
    with pytest.raises(ValueError, match="gone"):
        kubeconfig.read(path)


def test_a_kubeconfig_with_an_exec_plugin_is_read(tmp_path: Path) -> None:
    version = "client.authentication.k8s.io/v1"
    issued = {"apiVersion": version, "kind": "ExecCredential", "status": {"token": "issued"}}
    (tmp_path / "plugin").write_text(f"#!/bin/sh\ncat <<'EOF'\n{json.dumps(issued)}\nEOF\n")
    (tmp_path / "plugin").chmod(0o700)
    path = kubeconfig.write(tmp_path / "k", "https://h", b"", user="cloud", token="x")
    plugin = {"apiVersion": version, "command": str(tmp_path / "plugin"), "interactiveMode": "Never"}
    path.write_text(path.read_text().replace("token: x", f"exec: {json.dumps(plugin)}"))
    access = kubeconfig.read(path)
    assert access.headers == {"Authorization": "Bearer issued"}
    assert access.context == "unmask-e2e"


def test_daemons_are_stopped_by_their_own_id(tmp_path: Path) -> None:
    stubborn = [
        sys.executable,
        "-c",
        "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(3600)",
    ]
    daemon = spawn("stubborn", stubborn, tmp_path, tied=False)
    wait_for("it", lambda: "up" in daemon.tail(), [daemon])
    other = Daemon(daemon.name, daemon.pid, "0", daemon.log)  # an earlier process with the same id
    stop([other])
    assert daemon.alive()
    stop([daemon], grace=0.2)
    assert not daemon.alive()


def test_the_error_for_a_daemon_that_ends_early_has_its_log(tmp_path: Path) -> None:
    daemon = spawn("broken", ["sh", "-c", "echo no such flag >&2; exit 1"], tmp_path, tied=True)
    with pytest.raises(StartError, match="no such flag"):
        wait_for("it", lambda: False, [daemon])


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends children with their parent")
def test_tied_daemons_die_with_their_parent(tmp_path: Path) -> None:
    code = (
        "import os, pathlib, sys; from e2e.cluster.process import spawn;"
        "d = spawn('child', ['sleep', '3600'], pathlib.Path(sys.argv[1]), tied=True);"
        "print(d.pid, d.born, flush=True); os._exit(1)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, cwd=binaries.GO.parents[2]
    )
    pid, born = result.stdout.split()
    child = Daemon("child", int(pid), born, "")
    wait_until(lambda: not child.alive(), "the child's end")


def test_concurrent_clusters_are_independent(tmp_path: Path) -> None:
    made = [records.claim(tmp_path, "/one", "api") for _ in range(2)] + [records.claim(tmp_path, "/two", "api")]
    assert [record.number for record in made] == [0, 1, 2]
    networks = [Network(record.number) for record in made]
    for what in ("name", "machine", "node"):
        assert len({getattr(network, what) for network in networks}) == 3
    assert made[0].is_starting()  # this process is its owner
    assert not made[0].dead()
    newest = records.choose(tmp_path, "/one", "")
    assert newest.number == 1
    assert records.choose(tmp_path, "/one", "e2e-2") == made[2]
    assert records.choose(tmp_path, "/three", "") is None
    assert records.choose(tmp_path, "/one", "", "node") is None


def test_a_cluster_is_dead_when_nothing_of_it_runs(tmp_path: Path) -> None:
    record = records.claim(tmp_path, "/one", "api")
    runs, ended = (spawn(name, ["sleep", "3600"], tmp_path, tied=True) for name in ("runs", "ended"))
    stop([ended])
    record.owner, record.daemons, record.exports = 0, [runs, ended], {"KUBECONFIG": "k"}
    record.save()
    (record,) = records.load_all(tmp_path)
    assert (record.is_complete(), record.dead()) == (False, False)
    stop([runs])
    assert record.dead()


def test_a_process_that_ends_during_the_check_is_not_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    def goes(path: Path) -> str:
        raise ProcessLookupError(3, "No such process", str(path))

    monkeypatch.setattr(Path, "read_text", goes)
    assert not Daemon("api-server", 2**22 + 1, "1", "log").alive()

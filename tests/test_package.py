"""Tests of the installed package: its content, install commands in pages and messages, and the setup without CUDA."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import httpx
import pytest

from tests.layout.pages import pages
from tests.layout.source import python_files
from tests.wait import wait_until
from tests.written import written
from tools.cpu_lock import PACKAGE, without_cuda

ROOT = Path(__file__).parents[1]
LOCK = (ROOT / "constraints" / "lock.txt").read_text(encoding="utf-8")
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "runtime", "operator")


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """Yields the folder of commands of an environment with the wheel, and with the packages of this environment."""
    folder = tmp_path_factory.mktemp("package")
    for name in SOURCES:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / "tree" / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            (folder / "tree").mkdir(exist_ok=True)
            shutil.copy(source, folder / "tree")
    environment = folder / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    python = environment / "bin" / "python"
    (packages,) = (environment / "lib").glob("python*/site-packages")
    (packages / "dependencies.pth").write_text(f"{sysconfig.get_path('purelib')}\n", encoding="utf-8")
    pip = [sys.executable, "-m", "pip", "--python", python]
    options = ["--no-index", "--no-deps", "--no-build-isolation", "--quiet"]
    subprocess.run([*pip, "install", *options, folder / "tree"], check=True, env=environment_of(folder))
    return environment / "bin"


def environment_of(home: Path) -> dict[str, str]:
    """Returns the environment of a user outside the repository."""
    skipped = ("PYTHON", "UNMASK_", "PIP_")
    return {k: v for k, v in os.environ.items() if not k.startswith(skipped)} | {"HOME": f"{home}"}


@pytest.mark.matrix
def test_the_installed_commands_serve_the_demo_model_and_chat(installed, tmp_path):
    environment = environment_of(tmp_path)

    def run(*command: str | Path, **options) -> str:
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True, **options
        ).stdout

    where = run(installed / "python", "-c", "import runtime, unmask_operator as o; print(runtime.__file__, o.__file__)")
    assert all(Path(path).is_relative_to(installed.parent) for path in where.split())
    assert run(installed / "unmask", "--version").startswith("unmask ")
    with (tmp_path / "log").open("w+b") as log:
        arguments = ("--host", "127.0.0.1", "--port", "0", "--device", "cpu")
        server = subprocess.Popen(
            [installed / "unmask", "serve", *arguments], cwd=tmp_path, env=environment, stdout=log, stderr=log
        )
        try:
            found = wait_until(lambda: re.search(r"http://127\.0\.0\.1:\d+", written(log)) or server.poll() is not None)
            assert found is not True, written(log)
            url = found[0]
            wait_until(lambda: httpx.get(f"{url}/ready", trust_env=False).status_code == 200)
            assert "<html" in httpx.get(url, trust_env=False).text
            answer = run(installed / "unmask", "chat", "--url", url, input="What is 120 + 300?\n/quit\n")
            assert "120 + 300 = 420." in answer
        finally:
            server.terminate()
            server.wait()


def test_package_data_is_declared_for_every_folder_of_data():
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"][
        "package-data"
    ]
    expected = {
        path.relative_to(ROOT)
        for package in ("runtime", "operator/unmask_operator")
        for path in (ROOT / package).rglob("*")
        if path.is_file() and path.suffix not in (".py", ".pyc") and path != ROOT / "runtime" / "demo" / "README.md"
    }
    matched = {
        path.relative_to(ROOT)
        for package, patterns in declared.items()
        for pattern in patterns
        for path in (ROOT / package.replace(".", "/")).glob(pattern)
    }
    assert expected - matched == set()


def test_no_page_and_no_message_installs_the_package_by_its_name():
    bare = re.compile(r"pip3? install\b[^\n`]*[\s'\"]unmask\b(?!-)")
    texts = {path: (ROOT / path).read_text(encoding="utf-8") for path in (*pages(), *python_files(), "Makefile")}
    texts |= {f"{path}": path.read_text(encoding="utf-8") for path in (ROOT / "examples").iterdir()}
    assert [path for path, text in texts.items() if bare.search(text)] == []


def test_constraints_without_cuda_lack_only_torch_and_packages_of_its_cuda_build():
    names = [found["name"] for found in PACKAGE.finditer(LOCK)]
    left = [found["name"] for found in PACKAGE.finditer(without_cuda(LOCK))]
    dropped = set(names) - set(left)
    assert {"torch", "triton"} <= dropped
    assert all(name.startswith(("nvidia-", "cuda-")) for name in dropped - {"torch", "triton"})
    assert left == [name for name in names if name not in dropped]
    assert not re.search(r"nvidia|cuda-|^torch|via.*\btorch\b.*==", without_cuda(LOCK), re.MULTILINE)


@pytest.mark.parametrize("torch", ["", "cpu"])
def test_make_setup_installs_hashed_constraints_and_records_the_build_of_torch(tmp_path, torch):
    command = ["make", "--dry-run", "setup", f"VENV={tmp_path}", f"TORCH={torch}"]
    steps = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    (hashed,) = re.findall(r"--require-hashes.* -r (\S+)", steps)
    assert hashed == ("build/lock-cpu.txt" if torch else "constraints/lock.txt")
    locked = re.findall(r"^torch==(\S+)", LOCK, re.M)
    assert re.findall(r"--torch-backend cpu .*torch==(\S+)", steps) == locked[: bool(torch)]
    assert f'echo "{torch}" > {tmp_path}/.installed' in steps


def test_make_setup_refuses_another_build_of_torch_than_the_environment_has(tmp_path):
    stamp = tmp_path / ".installed"
    stamp.write_text("\n", encoding="utf-8")
    os.utime(stamp, (2**32, 2**32))  # newer than the constraints, so that nothing is installed

    def setup(*torch: str) -> subprocess.CompletedProcess[str]:
        command = ["make", "setup", f"VENV={tmp_path}", *torch]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)

    assert setup().returncode == setup("TORCH=").returncode == 0
    other = setup("TORCH=cpu")
    assert other.returncode == 2
    assert "has another build of torch than TORCH=cpu; run make clean first" in other.stdout
    stamp.write_text("cpu\n", encoding="utf-8")
    os.utime(stamp, (2**32, 2**32))
    assert setup().returncode == 0, "make setup without TORCH refuses the build that the environment has"
    unknown = setup("TORCH=cuda")
    assert unknown.returncode == 2
    assert "TORCH=cuda is not supported; use TORCH=cpu" in unknown.stderr

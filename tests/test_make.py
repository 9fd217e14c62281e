"""`make test`, with stand-ins for what it runs: what it started ends with it, however it ends."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HOUR = 3600
LONG = f"sleep {HOUR}"

# The compiler has a child, as a real one; both leave their ids.
PYTHON = """\
#!/bin/sh
case "$*" in
  "-m e2e.cluster build") echo $$ >>{place}/pids; sleep {compiles} & echo $! >>{place}/pids; wait
    echo the compiler said so; exit {compiled} ;;
  "-m pytest"*) touch {place}/testing; {tests}; exit {tested} ;;
  *) exec {python} "$@" ;;
esac
"""


@pytest.fixture
def make(tmp_path):
    """Start `make test` in a process group of its own, as a terminal does."""
    if not shutil.which("make"):
        pytest.skip("needs make")
    venv = tmp_path / "venv"
    (venv / "bin").mkdir(parents=True)
    started = []

    def stand_in(name, text):
        (venv / "bin" / name).write_text(text)
        (venv / "bin" / name).chmod(0o755)

    def start(linted=0, **times):
        known = {"place": tmp_path, "python": sys.executable, "compiles": HOUR, "compiled": 0}
        known |= {"tests": "true", "tested": 0}
        stand_in("python", PYTHON.format(**known | times))
        stand_in("ruff", f"#!/bin/sh\nexit {linted}\n")
        stand_in("mypy", "#!/bin/sh\n")
        (venv / ".installed").touch()
        made = subprocess.Popen(
            ["make", "-C", str(ROOT), "test", f"VENV={venv}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(
                signal.SIGINT, signal.SIG_DFL
            ),  # ignored where the tests run in the background
            env={
                name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS", "UNMASK"))
            },
        )
        started.append(made)
        return made

    yield start
    for made in started:
        for pid in {*compilers(tmp_path), made.pid}:
            if lives(pid):
                os.kill(pid, signal.SIGKILL)
        made.communicate(timeout=30)


def compilers(place):
    path = place / "pids"
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def lives(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def wait_for(found, seconds=20):
    end = time.monotonic() + seconds
    while not found():
        assert time.monotonic() < end
        time.sleep(0.02)


def ended(made, place):
    """The exit status and what was said, once nothing runs any more."""
    said, _ = made.communicate(timeout=60)
    wait_for(lambda: not any(map(lives, compilers(place))), 5)
    return made.returncode, said


def test_a_failure_of_the_tests_ends_the_compiler(make, tmp_path):
    until_both_compile = f"until test $(wc -l <{tmp_path}/pids) = 2; do sleep 0.1; done"
    made = make(tests=until_both_compile, tested=3)
    wait_for(lambda: len(compilers(tmp_path)) == 2)
    assert ended(made, tmp_path)[0] != 0


def test_what_fails_before_the_tests_ends_the_compiler(make, tmp_path):
    assert ended(make(linted=1), tmp_path)[0] != 0
    assert not (tmp_path / "testing").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_the_compiler(make, tmp_path, number):
    made = make(tests=LONG)
    wait_for(lambda: (tmp_path / "testing").exists() and len(compilers(tmp_path)) == 2)
    os.killpg(made.pid, number)
    assert ended(made, tmp_path)[0] != 0


def test_a_compiler_that_takes_longer_than_the_tests_is_waited_for(make, tmp_path):
    status, said = ended(make(compiles=1), tmp_path)
    assert status == 0, said
    assert len(compilers(tmp_path)) == 2


def test_a_compiler_that_fails_is_told(make, tmp_path):
    until_it_began = f"until test -s {tmp_path}/pids; do sleep 0.1; done"
    status, said = ended(make(compiles=0, compiled=1, tests=until_it_began), tmp_path)
    assert status != 0
    assert "the compiler said so" in said

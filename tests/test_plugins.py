"""Tests of plugins: every process loads them, and errors name the file and the fix."""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from runtime import LLM, SamplingParams, plugins
from runtime.bench import __main__ as bench
from runtime.errors import ConfigError, RequestError
from runtime.strategies import registry as strategies
from tests.golden import GOLDEN
from tests.server.harness import ROOT, serving

PAGE = ROOT / "docs" / "research" / "experiments.md"
TINY = str(GOLDEN / "llada2_tiny")
IDS = [list(range(40, 61))]
STRATEGY = """
from runtime.strategies.registry import register_strategy
from runtime.strategies.multi_bd import MultiBlock

register_strategy("mine", families=("llada2",))(MultiBlock)
"""


def page_plugin(name: str) -> str:
    """Returns the content of a file in docs/research/experiments.md."""
    found = re.search(rf'```python title="{name}"\n(.*?)```', PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert found
    return found[1]


@pytest.fixture(autouse=True)
def _restore_registries() -> Iterator[None]:
    copies = [(entries, dict(entries)) for entries in (*plugins._registries, plugins._loaded)]
    yield
    for entries, content in copies:
        entries.clear()
        entries.update(content)


@pytest.fixture
def best_few(tmp_path: Path) -> Path:
    path = tmp_path / "best_few.py"
    path.write_text(page_plugin(path.name), encoding="utf-8")
    return path


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], Path]:
    def write(source: str) -> Path:
        path = tmp_path / "mine.py"
        path.write_text(source, encoding="utf-8")
        return path

    return write


def tiny(**flags: object) -> LLM:
    return LLM(TINY, device="cpu", skip_tokenizer=True, max_model_len=256, **flags)


def test_the_algorithm_of_the_page_decodes(best_few: Path) -> None:
    with tiny(plugin=best_few) as llm:
        for few in (1, 4):
            params = SamplingParams(max_tokens=32, ignore_eos=True, decoding={"algorithm": "best_few", "few": few})
            (output,) = llm.generate(IDS, params)
            assert output.nfe >= 32 // few
        with pytest.raises(RequestError, match="few: 0 is out of range"):
            llm.generate(IDS, SamplingParams(decoding={"algorithm": "best_few", "few": 0}))


def test_a_strategy_is_registered_before_its_flag_is_checked(write: Callable[[str], Path]) -> None:
    with pytest.raises(ConfigError, match="--decoding-strategy 'mine'"):
        tiny(decoding_strategy="mine")
    with tiny(decoding_strategy="mine", plugin=[str(write(STRATEGY))]) as llm:
        assert llm.info.strategy == "mine"


def test_bench_evaluates_an_algorithm_with_its_fields(best_few: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--device", "cpu", "--tasks", "add", "--n", "1", "--plugin", str(best_few), "--algorithm", "best_few"]
    assert bench.main(["eval", *arguments, "--set", "few=64", "--set", "suppress_eos=logits"]) == 0
    assert "'few': 64, 'suppress_eos': 'logits'" in " ".join(capsys.readouterr().out.split())
    for setting, message in (
        ("few=0", "few: 0 is out of range"),
        ("few=many", "few: "),
        ("many=1", "many"),
        ("few", "--set 'few': is not of the form FIELD=VALUE"),
    ):
        assert bench.main(["eval", *arguments, "--set", setting]) == 1
        assert message in capsys.readouterr().err


@pytest.mark.matrix
def test_a_server_with_several_processes_and_ranks_loads_a_plugin_in_each(best_few: Path) -> None:
    sizes = ("--frontend-processes", "2", "--tensor-parallel-size", "2")
    body = {
        "messages": [{"role": "user", "content": "Solve: 12 + 30."}],
        "decoding": {"algorithm": "best_few", "few": 4},
    }
    with serving("--device", "cpu", "--plugin", str(best_few), *sizes) as server, server.client() as client:
        answer = client.post("/v1/chat/completions", json=body)
        assert answer.status_code == 200, answer.text
        assert answer.json()["choices"][0]["message"]["content"] == "12 + 30 = 42."
        assert '"few"' in client.get("/openapi.json").text


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ('from runtime.strategies.registry import register_strategy\nregister_strategy("multi_bd")(object)',
         "decoding strategy 'multi_bd' is registered twice; choose a key that is not taken"),
        (f"{STRATEGY}\nundefined", "line 7 raised NameError: name 'undefined' is not defined; correct the file"),
        ("\n\ndef f(:\n", "line 3 raised SyntaxError: "),
    ],
    ids=["key that exists", "exception", "syntax error"],
)  # fmt: skip
def test_a_plugin_that_cannot_be_loaded_is_named_with_the_cause(
    write: Callable[[str], Path], source: str, message: str
) -> None:
    path = write(source)
    with pytest.raises(ConfigError, match=re.escape(f"--plugin {path}: {message}")):
        tiny(plugin=path)
    assert "mine" not in strategies.strategies(), "the failed plugin is still registered"
    path.write_text(STRATEGY)
    tiny(plugin=path).close()
    assert "mine" in strategies.strategies()


def test_a_file_that_is_missing_or_no_python_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--plugin .*none\.py: cannot be read: No such file"):
        tiny(plugin=tmp_path / "none.py")
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(ConfigError, match=r"--plugin .*notes\.txt: is not a Python file"):
        tiny(plugin=tmp_path / "notes.txt")


def test_a_path_that_is_no_regular_file_is_refused_without_reading_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / "package").mkdir()
    for path in ("/dev/zero", tmp_path / "pipe.py", tmp_path / "package"):
        with pytest.raises(ConfigError, match=rf"--plugin {path}: cannot be read: it is not a regular file; give the"):
            tiny(plugin=path)


def test_a_file_is_executed_once_and_must_not_change(write: Callable[[str], Path]) -> None:
    path = write(STRATEGY)
    for _ in range(2):
        tiny(plugin=path).close()
    path.write_text(STRATEGY + "\n# edited")
    with pytest.raises(ConfigError, match="was changed after this process loaded it; start a new process"):
        tiny(plugin=path)


def test_a_changed_file_is_executed_even_if_its_size_and_time_are_the_same(write: Callable[[str], Path]) -> None:
    """In this case an ordinary import would execute the cached bytecode of the old file."""
    path = write(STRATEGY)
    plugins.load_plugins([str(path)])
    plugins._loaded.clear()  # simulates another process
    before = path.stat()
    path.write_text(STRATEGY.replace("mine", "ours"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    plugins.load_plugins([str(path)])
    assert "ours" in strategies.strategies()


@pytest.mark.parametrize("target", ["mine_package", "mine_package:register"])
def test_an_entry_point_of_an_installed_package_needs_no_flag(tmp_path: Path, target: str) -> None:
    source = STRATEGY if ":" not in target else "def register():\n" + STRATEGY.replace("\n", "\n    ")
    (tmp_path / "mine_package.py").write_text(source)
    info = tmp_path / "mine_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine-package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[unmask.plugins]\nmine = {target}\n")
    code = "from runtime.plugins import load_plugins as load; load(()); load(())\n"
    code += "from runtime.strategies.registry import strategies; print('mine' in strategies())"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env={"PYTHONPATH": f"{tmp_path}:{ROOT}"}, capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    assert done.stdout == "True\n"


def test_a_server_with_a_wrong_plugin_ends_with_one_sentence(write: Callable[[str], Path]) -> None:
    path = write("raise OSError('no disk')")
    command = [sys.executable, "-m", "runtime.server", "--port", "0", "--plugin", str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == f"error: --plugin {path}: line 1 raised OSError: no disk; correct the file"

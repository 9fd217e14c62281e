"""Tests that commands and examples in pages work with the demo model and produce the responses in the pages."""

import argparse
import json
import re
import shlex
from importlib import import_module
from pathlib import Path

import httpx
import pytest

from runtime.bench import __main__ as bench
from runtime.config import parse
from tests.server.harness import serving
from tests.test_plugins import page_plugin
from tools.docs.commands import ROOT, SERVER, commands, pages, split_commands

ALL = [command for page in pages() for command in commands(page)]
REQUESTS = [command for command in ALL if command.treatment == "run"]
PARSED = [command for command in ALL if command.treatment == "parsed"]
EXAMPLES = [
    (page, block)
    for page in pages()
    for block in re.findall(
        r"^```python\n(.*?)^```$", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    if "/models/" not in block
]


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    plugin = tmp_path_factory.mktemp("plugins") / "best_few.py"
    plugin.write_text(page_plugin("best_few.py"), encoding="utf-8")
    flags = ("--device", "cpu", "--max-num-reqs", "16", "--lora", "roman=demo://roman", "--plugin", str(plugin))
    with serving(*flags, "--served-model-name", "unmask-demo", "--served-model-name", "demo") as server:
        yield server


def answers(body: str) -> list[str]:
    """Returns the texts, tool call arguments and choices in a response of any route, streamed or not."""
    found: dict[str, str] = {}

    def collect(node, path=""):
        for key, value in node.items() if isinstance(node, dict) else enumerate(node):
            if isinstance(value, dict | list):
                collect(value, f"{path}/{key}")
            elif key in ("content", "text", "arguments", "choice") and isinstance(value, str) and value:
                found[f"{path}/{key}"] = value

    for line in body.splitlines():
        if line not in ("", "data: [DONE]"):
            collect(json.loads(line.removeprefix("data: ")))
    return list(found.values())


def test_every_command_has_a_known_treatment():
    assert [command for command in ALL if command.treatment == "unknown"] == []


def test_a_block_is_split_into_complete_commands():
    block = "# of a\na \\\n  b  # c\n# of d\nd 'e\nf'\nfor g in h; do\n  i\ndone\nj \"k\nl\"\n"
    assert list(split_commands(block)) == ["a b", "d 'e\nf'", "for g in h; do\n  i\ndone", 'j "k\nl"']


@pytest.mark.all_entries
@pytest.mark.parametrize("command", REQUESTS, ids=lambda command: command.page)
def test_requests_get_the_responses_in_the_page(demo, command):
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("-N", action="store_true")
    parser.add_argument("-H", action="append", default=[])
    parser.add_argument("-d")
    args = parser.parse_args(shlex.split(command.text)[1:])
    headers = dict(header.split(": ") for header in args.H)
    url = args.url.replace(SERVER, demo.url)
    answer = httpx.request("POST" if args.d else "GET", url, headers=headers, content=args.d, timeout=60)
    assert answer.status_code == 200, answer.text
    page = (ROOT / command.page).read_text(encoding="utf-8").replace("\\", "")
    shown = [text for text in answers(answer.text) if text in page]
    assert shown or not args.d, (command.page, answer.text)


@pytest.mark.parametrize("command", PARSED, ids=lambda command: command.page)
def test_flags_of_the_server_and_of_bench_parse(command):
    text = re.sub(r'make serve ARGS="(.*)"$', r"python -m runtime.server \1", command.text)
    module, *args = shlex.split(text.split(" -m ", 1)[1])
    if module == "runtime.server":
        parse(args, {})
        return
    tool, *args = args
    parser = argparse.ArgumentParser()
    assert tool in import_module(f"{module}.__main__").TOOLS
    import_module(f"{module}.{bench.MODULES.get(tool, tool)}").add_arguments(parser)
    parser.parse_args([arg for arg in args if arg != "--help"])


@pytest.mark.all_entries
@pytest.mark.parametrize(("page", "block"), EXAMPLES, ids=lambda value: value if value.endswith(".md") else "")
def test_examples_in_python_run(demo, capsys, page, block):
    exec(compile(block.replace(SERVER, demo.url), page, "exec"), {"__name__": page})
    assert capsys.readouterr().out.strip()


def test_files_of_examples_exist():
    for command in ALL:
        for path in re.findall(r"(?<![\w/])examples/[\w.-]+", command.text):
            assert Path(ROOT / path).is_file(), command

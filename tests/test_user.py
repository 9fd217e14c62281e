"""Tests of the first steps in README.md and docs/get-started/laptop.md, with the demo model in real processes."""

import argparse
import contextlib
import io
import itertools
import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from runtime.algorithms.base import algorithm_keys
from runtime.bench import serve
from runtime.chat import Conversation
from runtime.client import is_address, may_use_proxy
from tests.server.harness import serving

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
LAPTOP = (ROOT / "docs/get-started/laptop.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def server():
    with serving("--max-num-reqs", "32") as server:
        yield server


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl here")
def test_the_curl_command(server):
    command = re.search(r"^curl (?:.*\\\n)*.*$", README, re.MULTILINE)[0].replace("http://127.0.0.1:8000", server.url)
    command = shlex.split(command.replace("\\\n", " "))
    done = subprocess.run([*command, "--silent", "--noproxy", "*"], capture_output=True, text=True, check=True)
    answer = json.loads(done.stdout)
    assert answer["model"] == "unmask-demo"
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert re.fullmatch(r"120 \+ 300 = 420\.", answer["choices"][0]["message"]["content"])


def test_the_python_examples(server, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    client, offline = re.findall(r"```python\n(.*?)```", LAPTOP, re.DOTALL)
    shown = run(client.replace("http://127.0.0.1:8000", server.url))
    assert "7 x 8 = 56." in shown
    lines = run(offline).splitlines()
    assert lines[0].startswith("12 + 30 = 42.")
    assert lines[0].endswith(" stop")
    assert "'event': 'final'" in lines[-1]


def run(code: str) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, "laptop.md", "exec"), {"__name__": "laptop"})
    return out.getvalue()


def test_the_terminal_chat_ends_with_the_answer(server):
    question = "Tell a story about Clara, a duck and a forest."  # many possible continuations, so it takes many steps
    with server.client() as http:
        body = {"messages": [{"role": "user", "content": question}], "max_tokens": 100}
        full_answer = http.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]["content"]
        for edit in (False, True) if "edit" in algorithm_keys() else (False,):
            conversation = Conversation(http, max_tokens=100)
            if edit:
                conversation.decoding = {"algorithm": "edit", "mode": "quality"}
            frames = list(conversation.ask(question))
            assert any(piece.text is None for piece in frames[0].open)  # masks at first
            texts = [frame.text for frame in frames]
            assert all(b.startswith(a) for a, b in itertools.pairwise(texts))  # final text only grows
            shown = ["".join(p.text or "" for p in frame.open) for frame in frames]
            assert any(shown)  # positions filled out of order are seen before they are final
            if not edit:
                assert frames[-1].text == full_answer
            assert conversation.messages[-1]["content"] == frames[-1].text
        conversation = Conversation(http, max_tokens=100)
        for user_text, answer in (("Solve: 3 x 4.", "3 x 4 = 12."), ("And times 2?", "12 x 2 = 24.")):
            assert list(conversation.ask(user_text))[-1].text == answer  # the second answer depends on the first


def test_ctrl_c_frees_the_server(server):
    with server.client() as http:
        conversation = Conversation(http, max_tokens=900, ignore_eos=True)
        frames = conversation.ask("Tell a story of Ada and a fox near a mill.")
        next(frames)
        frames.close()
    server.until_idle()


def test_the_load_benchmark(server, tmp_path, capsys):
    parser = argparse.ArgumentParser()
    serve.add_arguments(parser)
    out = tmp_path / "b.json"
    argv = ["--url", server.url, "--clients", "1", "8", "--rate", "20", "--requests", "8", "--max-tokens", "16"]
    assert serve.main(parser.parse_args([*argv, "--json", str(out)])) == 0
    loads = json.loads(out.read_text())["loads"]
    for load in loads:
        (found,) = load["rounds"]
        assert found["ok"] == 8
        assert 0 < found["ttft"]["p50"] <= found["latency"]["p50"] < found["seconds"] + 0.001
        assert found["tokens_per_second"] > 0
    assert "8 clients" in capsys.readouterr().out


def test_proxies_are_not_used_for_this_machine():
    assert [may_use_proxy(u) for u in ("http://127.0.0.1:8000", "http://[::1]:80", "http://localhost")] == [False] * 3
    assert not any(may_use_proxy(f"http://{a}:8000") for a in ("0.0.0.0", "[::]", "[::ffff:127.0.0.1]"))
    assert may_use_proxy("http://[2001:db8::1]:8000")
    assert may_use_proxy("https://models.example")


def test_valid_and_invalid_addresses():
    assert all(map(is_address, ("http://127.0.0.1:8000", "https://models.example/a", "http://[::1]:80/")))
    assert all(map(is_address, ("http://münchen.example", "http://xn--fa-hia.de", "http://a_b:1")))
    wrong = ("localhost:8000", "127.0.0.1", "ftp://x", "http://", "http://[::1", "http://x:y", "")
    for url in (*wrong, "http://a..b", "http://x/\1", f"http://{'a' * 64}"):
        assert not is_address(url)

"""Grammars are tried in a process of its own, which one that takes too long or too much ends, and no other."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runtime import LLM, SamplingParams
from runtime.errors import ConfigError, RequestError
from runtime.request.structured import grammar_of
from runtime.structured import trials as made
from runtime.structured.trials import Trials

SLOW: dict[str, Any] = {"json": {"type": "integer", "multipleOf": 9999991}}  # an automaton of as many states


@pytest.fixture(scope="module")
def asked() -> Iterator[tuple[Path, Any]]:
    with LLM(device="cpu") as llm:
        assert llm.tokenizer is not None
        yield llm.tokenizer.directory, llm.engine.info


@pytest.fixture
def trials(asked: tuple[Path, Any]) -> Iterator[Trials]:
    trials = Trials(*asked, os.environ)
    yield trials
    trials.close()


def text(**form: Any) -> str:
    return grammar_of(form, "x")


def test_what_can_be_kept_to_and_what_not(trials: Trials) -> None:
    good, wrong = text(regex="a+"), text(json={"enum": []})
    assert trials.known(good) is None
    assert trials.trouble(good) == ""
    assert "nsatisfiable" in trials.trouble(wrong)
    assert (trials.known(good), trials.known(wrong)) == ("", trials.trouble(wrong))


def test_a_slow_one_ends_is_remembered_and_the_next_is_tried(trials: Trials) -> None:
    assert trials.trouble(text(regex="a")) == ""
    began = time.monotonic()
    assert trials.trouble(text(**SLOW)) == made.SLOW
    assert time.monotonic() - began < made.WAIT_SECONDS + 1
    began = time.monotonic()
    assert trials.trouble(text(**SLOW)) == made.SLOW
    assert time.monotonic() - began < made.WAIT_SECONDS / 2
    assert trials.trouble(text(regex="b")) == ""


def test_a_grammar_that_is_slow_to_translate_holds_up_nobody_but_the_trial(trials: Trials) -> None:
    """Some twenty seconds of translation: a server's event loop is at it for none of them."""
    began = time.thread_time()
    lines = text(grammar='root ::= "a"' + "\n" * 32_000)  # as long as may be asked for, once it is written as JSON
    assert time.thread_time() - began < 0.1
    assert trials.trouble(lines) == made.SLOW
    assert trials.trouble(text(grammar='root ::= "a" [b-c]')) == ""
    assert "it is not a readable grammar" in trials.trouble(text(grammar="root ::= ("))
    (form,) = json.loads(text(grammar='root ::= "a"'))["grammars"]  # as one part of a grammar of tools has it
    both = [{"lark_grammar": "start: @form"}, {"name": "form", **form}]
    assert trials.trouble(json.dumps({"grammars": both})) == ""
    long = "root ::= " + '"a" | ' * 7000 + '"b"'
    assert "characters in Lark's notation, at most 65536" in trials.trouble(text(grammar=long))


def test_a_process_that_is_gone_is_started_again(trials: Trials) -> None:
    assert trials.trouble(text(regex="a")) == ""
    assert trials._process is not None
    trials._process.kill()
    trials._process.wait()
    assert trials.trouble(text(regex="b")) == ""


def test_a_notation_that_is_long_to_translate(trials: Trials) -> None:
    rules = 1500  # a second's work, between the .25 that a notation may take and the 4 after which nobody waits
    chain = "\n".join(f'r{i} ::= "a" r{i + 1}' for i in range(rules)) + f'\nr{rules} ::= "b"\n'
    assert "its notation takes" in trials.trouble(text(grammar="root ::= r0\n" + chain))
    assert trials.trouble(text(grammar='root ::= "a" | "b"\n')) == ""


def test_one_that_takes_too_much_memory(trials: Trials, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system ends the process, as it does for memory."""
    assert trials.trouble(text(regex="a")) == ""
    assert trials._process is not None
    process = trials._process
    os.kill(process.pid, signal.SIGSTOP)
    monkeypatch.setattr(made, "_line", lambda source, seconds: (process.kill(), b"")[1])
    assert trials.trouble(text(regex="b")) == made.LARGE


def test_one_that_stays_large_is_refused_however_many_came_before(trials: Trials) -> None:
    """An engine keeps some dozens: of these each would be some 80 MB."""
    for i in range(3):
        assert "MiB once compiled, at most 32" in trials.trouble(
            text(json={"type": "integer", "multipleOf": 199999 - 2 * i})
        )
    assert trials.trouble(text(json={"type": "integer", "multipleOf": 7})) == ""


def test_verdicts_are_few(trials: Trials, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(made, "KEPT", 2)
    for word in ("a", "b", "c"):
        trials.trouble(text(regex=word))
    assert [trials.known(text(regex=word)) for word in ("a", "b", "c")] == [None, "", ""]


def test_a_tokenizer_that_is_not_there(asked: tuple[Path, Any], tmp_path: Path) -> None:
    nowhere = Trials(tmp_path, asked[1], os.environ)
    with pytest.raises(ConfigError, match=r"tokenizer\.json: not found"):
        nowhere.trouble(text(regex="a"))


def test_a_program_without_a_server_is_spared_them_too() -> None:
    with LLM(device="cpu", max_num_reqs=2) as llm:
        began = time.monotonic()
        with pytest.raises(RequestError, match=f"structured_outputs.json: .*{made.COMPILER_SECONDS:g} s to compile"):
            llm.generate(["a"], SamplingParams(structured_outputs=SLOW))
        assert time.monotonic() - began < made.WAIT_SECONDS + made.START_SECONDS
        (answer,) = llm.generate(["a"], SamplingParams(max_tokens=8, structured_outputs={"regex": "[ab]{2}"}))
        assert answer.text in ("aa", "ab", "ba", "bb")

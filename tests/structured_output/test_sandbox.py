"""Tests of the grammar sandbox: a grammar that takes too much time or memory ends only the sandbox process."""

import contextlib
import ctypes
import json
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO, Any
from unittest.mock import Mock

import pytest

from runtime import LLM, SamplingParams
from runtime.errors import ConfigError, RequestError
from runtime.request.structured import FIELD_PATH, grammar_of
from runtime.structured_output import sandbox as trials_module
from runtime.structured_output import sandbox_process as trial_module
from runtime.structured_output.gbnf import CheckResult
from runtime.structured_output.grammar_cache import STACK_BYTES, GrammarCache
from runtime.structured_output.sandbox import OUT_OF_MEMORY, READY, GrammarSandbox, SandboxLimits
from tests.structured_output.slow_grammars import COMPILER

SLOW: dict[str, Any] = {"choice": ["compile for 20 s"]}  # see slow_grammars.py, which all tests of this file use
HOUR = 3600.0
UNLIMITED = SandboxLimits(HOUR, HOUR, HOUR, HOUR)
SHORT = replace(UNLIMITED, compile_seconds=1)
Make = Callable[[SandboxLimits], GrammarSandbox]
TOO_SLOW = "it takes more than 1 s to compile; send a smaller or simpler one"


@pytest.fixture(autouse=True)
def library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials_module, "COMMAND", COMPILER)


@pytest.fixture
def make(facts: tuple[Path, Any]) -> Iterator[Make]:
    """Yields a function that returns a sandbox with limits, and closes all sandboxes."""
    with contextlib.ExitStack() as stack:

        def make(limits: SandboxLimits) -> GrammarSandbox:
            trials = GrammarSandbox(*facts, os.environ, limits)
            stack.callback(trials.close)
            return trials

        yield make


@pytest.fixture
def trials(make: Make) -> GrammarSandbox:
    return make(UNLIMITED)


def reason_of(trials: GrammarSandbox, grammar: str) -> str:
    return trials.check(grammar).reason


def text(**form: Any) -> str:
    return grammar_of(form, "x")


def test_supported_and_unsupported_schemas(trials: GrammarSandbox) -> None:
    good, wrong = text(regex="a+"), text(json={"enum": []})
    assert trials.result(good) is None
    assert reason_of(trials, good) == ""
    assert "nsatisfiable" in reason_of(trials, wrong)
    assert trials.result(good) == CheckResult(witness=(64,)), "the shortest answer is one a"
    assert trials.result(wrong) == trials.check(wrong)


def test_a_slow_grammar_is_remembered_and_the_next_is_compiled(make: Make) -> None:
    trials = make(SHORT)
    assert reason_of(trials, text(regex="a")) == ""
    assert reason_of(trials, text(**SLOW)) == TOO_SLOW
    assert trials._process is None
    assert reason_of(trials, text(**SLOW)) == TOO_SLOW
    assert trials._process is None, "the grammar was compiled again"
    assert reason_of(trials, text(regex="b")) == ""


def test_a_process_that_gets_no_cpu_time_is_ended(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    silent = f"read setup; echo '{READY.decode().strip()}'; exec sleep {HOUR}"
    monkeypatch.setattr(trials_module, "COMMAND", ("sh", "-c", silent))
    trials = make(replace(SHORT, answer_seconds=0.1))
    assert "not compiled within 0.1 s" in reason_of(trials, text(regex="a"))
    assert trials._process is None
    assert trials.result(text(regex="a")) is None, "the grammar is not to blame, so the next request may try it again"


def test_a_process_that_does_not_start_is_reported(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials_module, "COMMAND", ("sleep", str(HOUR)))
    with pytest.raises(ConfigError, match="does not start"):
        make(replace(UNLIMITED, start_seconds=0.1)).check(text(regex="a"))


def test_gbnf_is_translated_in_the_sandbox_process(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llguidance.gbnf_to_lark.any_to_lark", lambda text: pytest.fail("translated in this process"))
    trials = make(replace(SHORT, translate_seconds=0.1))
    assert reason_of(trials, text(grammar='root ::= "translate for 20 s"')) == TOO_SLOW
    assert "its notation takes" in reason_of(trials, text(grammar='root ::= "translate for 200 ms"'))
    assert reason_of(trials, text(grammar='root ::= "a" [b-c]')) == ""


def test_gbnf_within_the_limits(trials: GrammarSandbox) -> None:
    assert "it is not a readable grammar" in reason_of(trials, text(grammar="root ::= ("))
    (form,) = json.loads(text(grammar='root ::= "a"'))["grammars"]  # like a part of a grammar for tools
    both = [{"lark_grammar": "start: @form"}, {"name": "form", **form}]
    assert reason_of(trials, json.dumps({"grammars": both})) == ""
    long = "root ::= " + '"a" | ' * 7000 + '"b"'
    assert "characters in Lark's notation, at most 65536" in reason_of(trials, text(grammar=long))


def test_a_process_that_exited_is_restarted(trials: GrammarSandbox) -> None:
    assert reason_of(trials, text(regex="a")) == ""
    trials._process.kill()
    trials._process.wait()
    assert reason_of(trials, text(regex="b")) == ""


def killed(trials: GrammarSandbox, times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills the process the next `times` times that it has a grammar, as the kernel does when memory runs out."""
    read, left = trials_module._read_line, iter(range(times))

    def read_line(source: IO[bytes], seconds: float) -> bytes:
        if seconds == trials.limits.answer_seconds and next(left, None) is not None:
            os.kill(trials._process.pid, signal.SIGSTOP)
            trials._process.kill()
            return b""
        return read(source, seconds)

    monkeypatch.setattr(trials_module, "_read_line", read_line)


def test_a_killed_check_is_no_verdict(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    trials = make(replace(UNLIMITED, answer_seconds=HOUR / 2))
    killed(trials, 1, monkeypatch)
    assert reason_of(trials, text(regex="a")) == ""
    killed(trials, 2, monkeypatch)
    with pytest.raises(RequestError, match="cannot be checked now") as error:
        trials.check(text(regex="b"))
    assert error.value.status == 503
    assert trials.result(text(regex="b")) is None
    assert reason_of(trials, text(regex="b")) == ""


def test_a_process_that_is_killed_while_it_starts_is_started_again(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials_module, "COMMAND", ("sh", "-c", "kill -9 $$"))
    trials = make(UNLIMITED)
    with pytest.raises(RequestError, match="cannot be checked now"):
        trials.check(text(regex="a"))
    monkeypatch.setattr(trials_module, "COMMAND", COMPILER)
    assert reason_of(trials, text(regex="a")) == ""


@pytest.mark.parametrize("end", ["kill -ABRT $$", f"exit {trials_module.MEMORY_EXIT}"])
def test_a_grammar_that_takes_too_much_memory(end: str, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process ends itself, as Rust and Python do at the limit of memory."""
    ended = f"read setup; echo '{READY.decode().strip()}'; read grammar; {end}"
    monkeypatch.setattr(trials_module, "COMMAND", ("sh", "-c", ended))
    trials = make(UNLIMITED)
    assert reason_of(trials, text(regex="b")) == OUT_OF_MEMORY
    assert trials.result(text(regex="b")) == CheckResult(OUT_OF_MEMORY)


def test_a_grammar_that_is_large_once_compiled_is_refused(trials: GrammarSandbox) -> None:
    """The cache of an engine holds several dozen grammars."""
    for i in range(2):
        reason = reason_of(trials, text(choice=[f"compile into 80 MiB {i}"]))
        assert "MiB once compiled, at most 32" in reason
    assert reason_of(trials, text(choice=["compile into 8 MiB"])) == ""


def test_grammars_are_compiled_with_a_large_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler follows a chain of rules by recursion. In llguidance 1.9.1 a default stack ended the process."""
    grammars = GrammarCache(Mock(), Mock())
    monkeypatch.setattr(grammars, "_try", lambda text, thorough: (None, str(stack_bytes())))
    _, found = grammars.try_compile("x")
    assert int(found) >= STACK_BYTES > stack_bytes()


def stack_bytes() -> int:
    """Returns the stack size of this thread."""
    library, attributes = ctypes.CDLL(None), ctypes.create_string_buffer(64)
    library.pthread_self.restype = ctypes.c_void_p
    library.pthread_getattr_np(ctypes.c_void_p(library.pthread_self()), attributes)
    size = ctypes.c_size_t()
    library.pthread_attr_getstacksize(attributes, ctypes.byref(size))
    return size.value


def tools(*schemas: dict[str, Any]) -> str:
    """Returns a grammar with one part per schema, like that of a request's tools."""
    parts = []
    for i, schema in enumerate(schemas):
        (part,) = json.loads(text(json=schema))["grammars"]
        parts.append({"name": f"tool{i}", FIELD_PATH: f"tools[{i}]", **part})
    start = " | ".join(f"@tool{i}" for i in range(len(schemas)))
    return json.dumps({"grammars": [{"lark_grammar": f"start: {start}"}, *parts]})


UNIQUE = {"type": "array", "uniqueItems": True}
OVERLAPPING = {"oneOf": [{"type": "string"}, {"type": "string", "minLength": 2}]}


def test_parts_that_do_not_translate_are_found_without_compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial_module.signal, "setitimer", lambda *_: None)
    grammars: Any = Mock(spec=GrammarCache)
    _, refused = trial_module.check_grammar(
        grammars, tools({"type": "integer"}, UNIQUE, OVERLAPPING, UNIQUE), UNLIMITED
    )
    assert refused.reason.startswith("tools[1]: uniqueItems: true is not supported")
    assert (refused.parts, refused.wrong) == (("tool1", "tool3"), False)
    _, refused = trial_module.check_grammar(grammars, tools(UNIQUE, {"type": "nothing"}), UNLIMITED)
    assert refused.reason.startswith("tools[0]: ")
    assert (refused.parts, refused.wrong) == ((), True)
    assert grammars.method_calls == []


def test_each_part_that_the_engine_refuses_has_its_own_limit_of_time(monkeypatch: pytest.MonkeyPatch) -> None:
    timers: list[float] = []
    monkeypatch.setattr(trial_module.signal, "setitimer", lambda _, seconds: timers.append(seconds))
    now = iter([0.0, 0.0, 0.0, 0.0, 4.0, 6.0])  # start and end of the translation, start of the parts, each part
    monkeypatch.setattr(trial_module.time, "process_time", lambda: next(now))
    refuse = Mock(side_effect=lambda text, **_: (None, "refused" if "oneOf" in text else ""))
    grammars = GrammarCache(Mock(), Mock())
    monkeypatch.setattr(grammars, "try_compile", refuse)
    limits = replace(UNLIMITED, compile_seconds=1.5, parts_seconds=5.0)
    integer = {"type": "integer"}
    _, refused = trial_module.check_grammar(grammars, tools(integer, OVERLAPPING, OVERLAPPING), limits)
    assert timers == [1.5, 1.5, 1.5], "the third part came after the limit of all of them"
    assert (refused.reason, refused.parts, refused.wrong) == ("tools[1]: refused", ("tool1",), False)


def test_results_name_the_refused_parts(trials: GrammarSandbox) -> None:
    refused, wrong = tools({"type": "integer"}, OVERLAPPING), tools({"type": "integer"}, {"enum": []})
    assert reason_of(trials, refused).startswith("tools[1]: oneOf: two alternatives may fit")
    assert (trials.check(refused).parts, trials.check(refused).wrong) == (("tool1",), False)
    assert reason_of(trials, wrong).startswith("tools[1]: ")
    assert (trials.check(wrong).parts, trials.check(wrong).wrong) == ((), True)


def test_the_number_of_stored_results_is_limited(trials: GrammarSandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials_module, "MAX_RESULTS", 2)
    found = [trials.check(text(regex=word)) for word in ("a", "b", "c")]
    assert [trials.result(text(regex=word)) for word in ("a", "b", "c")] == [None, *found[1:]]


def test_a_missing_tokenizer_is_reported(facts: tuple[Path, Any], tmp_path: Path) -> None:
    nowhere = GrammarSandbox(tmp_path, facts[1], os.environ)
    with pytest.raises(ConfigError, match=r"tokenizer\.json: not found"):
        nowhere.check(text(regex="a"))


def test_a_program_without_a_server_has_the_same_limits() -> None:
    with LLM(device="cpu", max_num_reqs=2) as llm:
        assert isinstance(llm.engine.grammars.checker, GrammarSandbox)
        llm.engine.grammars.checker = GrammarSandbox(llm.tokenizer.directory, llm.engine.info, os.environ, SHORT)
        with pytest.raises(RequestError, match=f"structured_outputs.choice: .*{TOO_SLOW}"):
            llm.generate(["a"], SamplingParams(structured_outputs=SLOW))
        (answer,) = llm.generate(["a"], SamplingParams(max_tokens=8, structured_outputs={"regex": "[ab]{2}"}))
        assert answer.text in ("aa", "ab", "ba", "bb")

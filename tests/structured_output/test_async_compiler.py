"""Tests of the grammar compiler thread: it gives tenants equal time and does not compile canceled grammars."""

import threading
from typing import Any, cast

import pytest

from runtime.structured_output.async_compiler import GrammarCompiler
from runtime.structured_output.grammar_cache import GrammarCache
from tests.wait import TIMEOUT, wait_until


class Recorded:
    """A grammar cache that records compilations."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.release = threading.Event(), threading.Event()
        self.order: list[str] = []
        self.now = 0.0
        monkeypatch.setattr("runtime.structured_output.async_compiler.time.perf_counter", lambda: self.now)

    def get(self, text: str) -> None:
        return None

    def compile(self, text: str, param: str) -> Any:
        self.begun.set()
        assert self.release.wait(TIMEOUT)
        self.order.append(text)
        self.now += 1
        if text.startswith("wrong"):
            raise ValueError(text)
        return text


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Recorded:
    return Recorded(monkeypatch)


def test_one_tenant_does_not_wait_behind_the_grammars_of_another(recorded: Recorded) -> None:
    compiling: GrammarCompiler[str] = GrammarCompiler(cast(GrammarCache, recorded))
    for number in range(100):
        assert compiling.submit(f"a{number}", f"a{number}", f"a{number}", "a") is None
    assert recorded.begun.wait(TIMEOUT)
    compiling.submit("b", "b", "b", "b")
    recorded.release.set()
    wait_until(lambda: len(recorded.order) == 101)
    assert recorded.order.index("b") == 1
    assert [text for text in recorded.order if text != "b"] == [f"a{number}" for number in range(100)]
    compiling.close()


def test_canceled_grammars_are_not_compiled_and_errors_are_yielded(recorded: Recorded) -> None:
    compiling: GrammarCompiler[str] = GrammarCompiler(cast(GrammarCache, recorded))
    for name in ("first", "dropped", "wrong", "last"):
        compiling.submit(name, name, name)
    assert compiling.cancel("dropped") == "dropped"
    assert compiling.cancel("nobody") is None
    recorded.release.set()
    found: dict[str, Any] = {}
    wait_until(lambda: found.update(dict(compiling.poll())) or len(found) == 3)
    assert recorded.order == ["first", "wrong", "last"]
    assert (found["first"], found["last"], type(found["wrong"])) == ("first", "last", ValueError)
    assert len(compiling) == 0
    compiling.close()

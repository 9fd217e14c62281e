"""Tests of the limits of template rendering and encoding. Within these limits, results are unchanged."""

import itertools
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2.sandbox import ImmutableSandboxedEnvironment

from runtime.errors import ConfigError, RequestError
from runtime.tokenizer import Tokenizer, template_sandbox, tokenizer
from runtime.tokenizer.chat_template import ChatTemplate
from runtime.tokenizer.marked_text import Marks
from runtime.tokenizer.template_sandbox import Cancelled, RenderBudget
from tests.tokenizer.conftest import byte_level, metaspace, save
from tests.tokenizer.panicking import PANICS, load

MESSAGES = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
LOOPS = [
    "{% for m in messages %}{{ loop.index }}/{{ loop.length }}{{ m.content if not loop.last }}{% endfor %}",
    "{% for m in messages %}{{ loop.revindex }}{{ loop.previtem }}{{ loop.nextitem }}{% endfor %}",
    "{% for m in messages if m.role == 'user' %}{{ m.content }}{{ loop.first }}{% else %}none{% endfor %}",
    "{% for m in messages[::-1] %}{% if m.role == 'assistant' %}{% break %}{% endif %}{{ m.content }}{% endfor %}",
    "{% for x in [] %}x{% else %}nothing{% endfor %}{% for x in none_of_it or [] %}{{ x }}{% endfor %}",
    "{% for k, v in messages[0].items() %}{{ k }}={{ v }};{% endfor %}{% for c in 'abc' %}{{ c }}{% endfor %}",
    "{% for x in [[1, [2, 3]], 4] recursive %}{{ loop(x) if x is iterable else x }}{{ loop.depth }}{% endfor %}",
    "{% macro f(n) %}{{ n }}{% if n %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}",
    "{{ 3 * 4 }}{{ 'ab' * 3 }}{{ 2 ** 5 }}{{ 1.5 * 10 ** 9 }}{{ messages * 2 }}",
    "{% set ns = namespace(i=0) %}{% for m in messages %}{% set ns.i = ns.i + loop.index0 %}{% endfor %}{{ ns.i }}",
]


def template(source: str) -> ChatTemplate:
    return ChatTemplate(source, Marks({}), {})


@pytest.mark.parametrize("source", LOOPS)
def test_limited_loops_render_as_unlimited_ones(source: str) -> None:
    unlimited = ImmutableSandboxedEnvironment(extensions=["jinja2.ext.loopcontrols"]).from_string(source)
    assert template(source).render(MESSAGES, {}) == unlimited.render(messages=MESSAGES)


def test_loops_over_values_that_are_no_lists_are_refused() -> None:
    with pytest.raises(RequestError, match="cannot render"):
        template("{% for x in 5 %}{{ x }}{% endfor %}").render(MESSAGES, {})
    with pytest.raises(RequestError, match="cannot render"):
        template("{% for x in no.such %}{{ x }}{% endfor %}").render(MESSAGES, {})


SPINS = [
    "{% for a in range(n) %}{% for b in range(n) %}{% endfor %}{% endfor %}",
    "{% for m in messages %}{% for a in range(n) %}{% for b in range(n) %}{% endfor %}{% endfor %}{% endfor %}",
    "{% macro f(d) %}{% if d %}{% set a = f(d - 1) %}{% set b = f(d - 1) %}{% endif %}{% endmacro %}{{ f(10) }}",
]


@pytest.mark.parametrize("source", SPINS)
def test_a_template_that_exceeds_its_cpu_time_is_stopped(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spent = itertools.count(0, 0.01)  # each check of the CPU time, one per iteration or call
    monkeypatch.setattr(time, "thread_time", lambda: next(spent))
    monkeypatch.setattr(template_sandbox, "GRACE", 0.0)
    with pytest.raises(RequestError, match=r"takes more than 2 s for these messages; shorten them") as refused:
        template(source).render(MESSAGES, {"n": 30})
    assert refused.value.param == "messages"


def test_a_rendering_that_is_not_needed_is_canceled() -> None:
    looks = 0

    def is_requested() -> bool:
        nonlocal looks
        looks += 1
        return looks < 100

    with pytest.raises(Cancelled):
        template(SPINS[0]).render(MESSAGES, {"n": 30}, RenderBudget(is_needed=is_requested))


def test_a_template_with_large_output_is_stopped() -> None:
    with pytest.raises(RequestError, match="writes more than 1000 characters"):
        template("{% for a in range(n) %}{{ messages[0].content }}{% endfor %}").render(
            MESSAGES, {"n": 9999}, RenderBudget(1000)
        )
    for source in ("{{ 'x' * n }}", "{{ n * [1] }}", "{{ 9 ** n }}"):
        with pytest.raises(RequestError, match=r"cannot render them: .* (repeated|too large)"):
            template(source).render(MESSAGES, {"n": template_sandbox.MAX_FACTOR + 1})


def test_a_template_that_calls_itself_is_refused() -> None:
    with pytest.raises(RequestError, match=r"cannot render them: .*recursion"):
        template("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}").render(MESSAGES, {})


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> list[Tokenizer]:
    made = []
    for library in (byte_level(), metaspace()):
        directory = tmp_path_factory.mktemp("tokenizer")
        save(library, directory)
        made.append(Tokenizer(directory))
    return made


@given(st.integers(0, 1), st.text(max_size=200), st.integers(0, 100))
def test_a_text_is_refused_only_if_it_is_too_long(small: list[Tokenizer], kind: int, text: str, limit: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokenizer, "WINDOW", 16)
        encoded = small[kind].encode(text)
        found = small[kind].encode_limited(text, limit)
        if found is None:
            assert len(encoded) > limit
        else:
            assert found == encoded
        assert small[kind].encode_limited(text, len(encoded) + 2 * (len(text) // 16 + 1)) == encoded


def test_encoding_of_a_long_text_stops_between_windows(small: list[Tokenizer], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer, "WINDOW", 16)
    encoded: list[str] = []
    unlimited = Tokenizer._encode
    monkeypatch.setattr(Tokenizer, "_encode", lambda self, text: encoded.append(text) or unlimited(self, text))
    with pytest.raises(Cancelled):
        small[0].encode_limited("a b " * 100, 10**6, is_needed=lambda: len(encoded) < 3)
    assert len(encoded) == 3
    encoded.clear()
    assert small[0].encode_limited("a b " * 100, 10) is None
    assert len(encoded) < 10


@pytest.fixture
def panicking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns a checkpoint whose tokenizer panics on some texts."""
    monkeypatch.setattr(tokenizer, "_load", load)
    save(byte_level(), tmp_path)
    return tmp_path


def test_a_panic_of_the_library_is_an_ordinary_error(panicking: Path) -> None:
    mine = Tokenizer(panicking)
    with pytest.raises(RuntimeError, match="tokenizers library failed"):
        mine.encode(PANICS)
    assert mine.decode(mine.encode("b")) == "b"


def test_a_panic_while_loading_names_the_file(panicking: Path) -> None:
    (panicking / "chat_template.jinja").write_text(PANICS)
    with pytest.raises(ConfigError, match=r"tokenizer\.json: cannot be used: the tokenizers library failed"):
        Tokenizer(panicking)


def test_a_fast_rendering_does_not_read_the_cpu_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading the thread's CPU time is a system call. Most renderings take less time than a few of these calls."""
    monkeypatch.setattr(template_sandbox, "GRACE", 60.0)
    monkeypatch.setattr(time, "thread_time", lambda: pytest.fail("asked"))
    assert template(LOOPS[0]).render(MESSAGES, {}) != ""

"""Tests that templates that take much memory or time are refused, and that others render as in jinja."""

import tracemalloc

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

from runtime.errors import ConfigError, RequestError
from runtime.tokenizer import template_sandbox
from runtime.tokenizer.chat_template import ChatTemplate
from runtime.tokenizer.marked_text import Marks
from runtime.tokenizer.template_sandbox import RenderBudget

MESSAGES = [{"role": "user", "content": "Aa b\nc <d> 'e' é"}, {"role": "assistant", "content": ""}]
# Limits of these tests, a thousandth of the real ones: no template here is large, even without a limit.
LIMITS = {
    "MAX_CHARS": 2**12, "MAX_BYTES": 2**17, "MAX_FACTOR": 1000, "MAX_ITEMS": 1000, "MAX_NODES": 1500, "MAX_BITS": 128,
    "MAX_DIGITS": 40, "MAX_SLOW_CHARS": 2**11,
}  # fmt: skip
PEAK_BYTES = 2 * LIMITS["MAX_BYTES"]  # maximum measured memory of a rendering
GROW = "{% set ns = namespace(x='a', l=[], d={}) %}"
BIG = GROW + "{% for i in range(11) %}{% set ns.x = ns.x + ns.x %}{% endfor %}"  # 2 KiB

LARGE = {
    "concatenation": GROW + "{% for i in range(14) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "addition": GROW + "{% for i in range(14) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "a list that doubles": GROW + "{% set ns.l = [1] %}{% for i in range(12) %}{% set ns.l = ns.l * 2 %}{% endfor %}",
    "a tuple repeated": "{{ ((1, 2) * 1000 * 1000)|length }}",
    "texts that are kept": BIG + "{% for i in range(999) %}{% set ns.l = ns.l + [ns.x ~ i] %}{% endfor %}",
    "slices that are kept": BIG + "{% for i in range(999) %}{% set ns.l = ns.l + [ns.x[i:]] %}{% endfor %}",
    "steps that are kept": BIG + "{% for i in range(999) %}{% set ns.l = ns.l + [ns.x[::-1]] %}{% endfor %}",
    "cases that are kept": BIG + "{% for i in range(999) %}{% set ns.l = ns.l + [ns.x|upper] %}{% endfor %}",
    "methods that are kept": BIG + "{% for i in range(999) %}{% set ns.l = ns.l + [ns.x.upper()] %}{% endfor %}",
    "a list of one text as text": BIG + "{{ [ns.x] * 999 }}",
    "a mapping of one text as text": BIG + "{{ {'a': [ns.x, ns.x, ns.x]} }}",
    "a nested list as text": GROW + "{% for i in range(13) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l }}",
    "nested lists as JSON": GROW + "{% for i in range(13) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l|tojson }}",
    "a list of one text concatenated": BIG + "{{ '' ~ [ns.x] * 999 }}",
    "a list of one text in a filter": BIG + "{{ ([ns.x] * 999)|upper }}",
    "a list of one text in a format": BIG + "{{ '%s' % ([ns.x] * 999,) }}",
    "an argument formatted often": BIG + "{{ ('{0}' * 999).format(ns.x) }}",
    "an argument formatted often by name": BIG + "{{ ('%(a)s' * 700) % {'a': ns.x} }}",
    "a filter's argument formatted often": BIG + "{{ ('%(a)s' * 700)|format(a=ns.x) }}",
    "a separator": BIG + "{{ ([1] * 999)|join(ns.x) }}",
    "a separator's method": BIG + "{{ ns.x.join(['1'] * 999) }}",
    "a text joined often": BIG + "{{ ([ns.x] * 999)|join }}",
    "a replacement": BIG + "{{ ns.x|replace('a', 'b' * 999) }}",
    "an empty replacement": BIG + "{{ ns.x.replace('', 'b' * 999) }}",
    "a translation": BIG + "{{ ns.x.translate({97: 'b' * 999}) }}",
    "a captured block": BIG + "{% set y %}{% for i in range(999) %}{{ ns.x }}{% endfor %}{% endset %}{{ y|length }}",
    "a macro": BIG + "{% macro f() %}{% for i in range(999) %}{{ ns.x }}{% endfor %}{% endmacro %}{{ f()|length }}",
    "a filter block": BIG + "{% filter upper %}{% for i in range(999) %}{{ ns.x }}{% endfor %}{% endfilter %}",
    "a split": BIG + "{{ ns.x.split('a')|length }}",
    "a split of white space": GROW + "{% set y = 'a ' * 999 %}{{ (y * 2).split()|length }}",
    "a split from the right": BIG + "{{ ns.x.rsplit('a')|length }}",
    "rows": "{{ ('\n' * 999 * 4).splitlines()|length }}",
    "a list of characters": BIG + "{{ ns.x|list|length }}",
    "wrapped rows": "{{ ('a ' * 999)|wordwrap(1, wrapstring='b' * 999)|length }}",
    "links": "{{ ('http://a.b ' * 300)|urlize|length }}",
    "batches": "{{ ['a']|batch(9999, 'b')|list|length }}",
    "slices": "{{ ['a']|slice(9999)|list|length }}",
    "padding": "{{ 'a'.ljust(3000)|length }}",
    "a centered text": "{{ 'a'|center(3000)|length }}",
    "an indented text": "{{ 'a'|indent(3000, true)|length }}",
    "a deeply nested list": GROW + "{% for i in range(80) %}{% set ns.l = [ns.l] %}{% endfor %}{{ ns.l }}",
    "precision": "{{ ('%.2000f' % 1.5)|length }}",
    "a product": "{% set ns = namespace(x=9999) %}{% for i in range(5) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
    "a power": "{{ 99 ** 99 }}",
    "a sum of lists": "{{ ([[1]] * 999)|sum(start=[])|length }}",
    "an attribute's sum": "{{ messages|sum('content', start='') }}",
    "made up text": "{{ lipsum(n=9, max=100)|length }}",
    "indented JSON": "{{ [[1]]|tojson(indent=1001) }}",
    "JSON of one text": BIG + "{{ ([ns.x] * 999)|tojson }}",
    "JSON with long separators": "{{ range(999)|list|tojson(separators=('x' * 1000, ':'))|length }}",
    "JSON with long separators of keys": "{{ dict(range(800)|batch(2))|tojson(separators=(',', 'x' * 1000)) }}",
    "bytes that are padded": "{{ 'a'.encode().ljust(3000)|length }}",
    "an integer's bytes": "{{ (1).to_bytes(3000, 'big')|length }}",
    "a truth value's bytes": "{{ true.to_bytes(3000, 'big')|length }}",
    "a width that is an argument": "{{ '{:>{w}}'.format('a', w='3000')|length }}",
    "a width that is an item": "{{ '{0:>{1[0]}}'.format('a', [3000])|length }}",
    "a width of a mapping": "{{ '{a:>{w}}'.format_map({'a': 1, 'w': '3000'})|length }}",
    "a width behind a brace": "{{ '{0[}]:>3000}'.format({'}': 'a'})|length }}",
    "a width behind a brace, of a mapping": "{{ '{a[}]:>3000}'.format_map({'a': {'}': 'a'}})|length }}",
    "many widths": "{{ ('{0:>999}' * 400).format('a')|length }}",
    "many widths of a mapping": "{{ (('%(a)999s' * 400) % {'a': 1})|length }}",
    "a width behind a parenthesis": "{{ ('%(a(b))3000d' % {'a(b)': 1})|length }}",
    "a filter's width behind a parenthesis": "{{ '%(a(b))3000d'|format(**{'a(b)': 1})|length }}",
    "a separator of an iterator": "{{ ('x' * 1000).join(range(999)|map('string'))|length }}",
    "a separator of a mapping": "{{ ('x' * 1000).join(dict(range(800)|map('string')|batch(2)))|length }}",
    "a separator of keys": "{{ ('x' * 1000).join(dict(range(800)|map('string')|batch(2)).keys())|length }}",
    "a number rounded to zeros": "{{ 5|round(-200) }}",
    "a number rounded up": "{{ 1|round(200, 'ceil') }}",
}  # fmt: skip

HARMLESS = [
    "{{ 'a' ~ 1 ~ none ~ messages[0].content ~ unknown ~ [1, 'b'] }}",
    "{{ messages[1:]|length }}{{ messages[::-1][0].role }}{{ 'abcdef'[1:-1:2] }}{{ 'abc'[:2] }}{{ (1, 2, 3)[1:] }}",
    "{{ 1 + 2 }}{{ 'a' + 'b' }}{{ [1] + [2] }}{{ 7 - 2 }}{{ 7 / 2 }}{{ 7 // 2 }}{{ 7 % 4 }}{{ 'a%s' % 3 }}",
    "{{ 'a' * 3 }}{{ [0] * 2 }}{{ 3 * 'b' }}{{ -5 + 1.5 }}{{ 2 ** 8 }}",
    "{{ [1, 2]|join(', ') }}{{ messages|join('-', attribute='role') }}{{ ', '.join(['a', 'b']) }}{{ 'xyz'|join('.') }}",
    "{{ [1, 2, 3]|sum }}{{ [{'a': 1}, {'a': 2}]|sum('a') }}{{ [1.5]|sum(start=2) }}",
    "{{ 'a b c d'|wordwrap(3) }}{{ 'a b'|wordwrap(1, wrapstring='|') }}",
    "{{ messages|map(attribute='role')|list }}{{ range(4)|map('string')|list }}{{ 'abc'|list }}{{ {'b': 1}|list }}",
    "{{ [3, 1, 2]|sort }}{{ {'b': 2, 'a': 1}|dictsort }}{{ messages|groupby('role')|length }}{{ [1, 1]|unique|list }}",
    "{{ range(5)|batch(2)|list }}{{ range(5)|slice(2)|list }}{{ [1, 2]|first }}{{ [1, 2]|last }}",
    "{{ 'a,b'.split(',') }}{{ ' a  b '.split() }}{{ 'a,b,c'.split(',', 1) }}{{ 'a\nb'.splitlines() }}",
    "{{ 'abc'.replace('b', 'xy') }}{{ 'aaa'|replace('a', 'b', 2) }}{{ '{} {x:>4}'.format(1, x=2) }}{{ '%05d' % 7 }}",
    "{% set x %}<{{ messages[0].content }}>{% endset %}{{ x|trim|upper }}{{ x|e }}",
    "{% macro f(a, b=2) %}{{ a }}{{ b }}{{ caller() if caller }}{% endmacro %}{% call f(1) %}x{% endcall %}{{ f(3) }}",
    "{{ messages }}{{ {'a': (1, [2])} }}{{ none }}{{ true }}{{ 1.5 }}{{ unknown }}",
    "{% filter upper %}a{{ 1 }}{% endfilter %}{{ 'Ab'|lower|title|capitalize }}{{ 'a'|center(5) }}",
    "{{ messages|selectattr('role', 'equalto', 'user')|list|length }}{{ [1, 2]|reject('odd')|list }}{{ [3, 4]|max }}",
    "{{ 'a' in 'abc' }}{{ 'abc'|length }}{{ '12'|int + 1 }}{{ '<b>'|striptags }}{{ x|default('c') }}",
    "{{ dict(a=1).a }}{{ cycler('a', 'b').next() }}{{ 'a\nb'|indent(2) }}{{ 'é'|length }}",
    "{{ 1.25|round(1) }}{{ 1.21|round(1, 'ceil') }}{{ 1234|round(-2, method='floor') }}{{ 2.5|round }}",
    "{{ ', '.join({'a': 1, 'b': 2}) }}{{ '-'.join(range(3)|map('string')) }}{{ ''.join('abc') }}{{ 'x'.join([]) }}",
    "{{ '{0[a]:>4}{1.b}{{}}'.format({'a': 1}, {'b': 2}) }}{{ '{a:05d}'.format_map({'a': 7}) }}",
    "{{ '100%% %(a)4s' % {'a': 1} }}{{ '%*d' % (4, 7) }}{{ '%(a)s'|format(a=1) }}",
]  # fmt: skip


@pytest.mark.parametrize("source", [pytest.param(source, id=name) for name, source in LARGE.items()])
def test_a_template_that_needs_too_much_memory_is_refused_in_advance(
    source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, limit in LIMITS.items():
        monkeypatch.setattr(template_sandbox, name, limit)
    template = ChatTemplate(source, Marks({}), {})
    tracemalloc.start()
    try:
        with pytest.raises(RequestError, match="messages: the model's chat template") as refused:
            template.render(MESSAGES, {}, RenderBudget(LIMITS["MAX_CHARS"]))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < PEAK_BYTES
    assert len(refused.value.message) < 500


@pytest.mark.parametrize("source", HARMLESS)
def test_other_templates_render_as_in_jinja(source: str) -> None:
    reference = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True).from_string(source)
    assert ChatTemplate(source, Marks({}), {}).render(MESSAGES, {}) == reference.render(messages=MESSAGES)


def test_a_long_conversation_is_rendered_by_a_template_that_copies_it_several_times() -> None:
    source = (
        "{% for m in messages %}{% set c = m.content|trim %}"
        "{% if '</think>' in c %}{% set c = c.split('</think>')[-1] %}{% endif %}"
        "{{ '<' ~ m.role ~ '>' + c.lstrip() ~ '\n' }}{% endfor %}"
    )
    messages = [{"role": "user", "content": f" {'words and ' * 100}</think>{i}"} for i in range(2000)]
    text = ChatTemplate(source, Marks({}), {}).render(messages, {})
    assert text.count("\n") == 2000


@pytest.mark.parametrize(
    "source", ["{{ " + "(" * 5000 + ")" * 5000 + " }}", "{% if a %}" * 5000 + "{% endif %}" * 5000]
)
def test_a_template_that_is_nested_too_deep_is_refused_at_start(source: str) -> None:
    with pytest.raises(ConfigError, match="the chat template"):
        ChatTemplate(source, Marks({}), {})

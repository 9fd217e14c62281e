"""Chat templates with the constructs of the documented families' templates, and a rendering by transformers."""

# ruff: noqa: E501 (a line break in a template is part of it)
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

SCRIPT = """
import json, sys
sys.modules["torch"] = None
from transformers.utils.chat_template_utils import render_jinja_template
results = []
for source, messages, values in json.load(sys.stdin):
    try:
        texts, _ = render_jinja_template([messages], chat_template=source, **values)
        results.append(texts[0])
    except Exception as error:
        results.append(None)
json.dump(results, sys.stdout)
"""


def rendered_by_transformers(cases: Sequence[tuple[str, Any, Mapping[str, Any]]]) -> list[str | None]:
    """Returns the text for each template, conversation and set of variables; None if transformers raises."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], input=json.dumps(cases), capture_output=True, text=True, check=True
    )
    results: list[str | None] = json.loads(done.stdout)
    return results


IM = """
{%- if tools %}
{{- '<|im_start|>system\\n' }}
{%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
{{- "# Tools\\n\\n<tools>" }}
{%- for tool in tools %}{{- "\\n" }}{{- tool | tojson }}{%- endfor %}
{{- "\\n</tools><|im_end|>\\n" }}
{%- elif messages[0].role == 'system' %}
{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(multi_step=true, last=messages|length - 1) %}
{%- for message in messages[::-1] %}
{%- set index = (messages|length - 1) - loop.index0 %}
{%- if ns.multi_step and message.role == "user" and not (message.content.startswith('<tool_response>')) %}
{%- set ns.multi_step = false %}{%- set ns.last = index %}
{%- endif %}
{%- endfor %}
{%- for message in messages %}
{%- if message.role == "user" or (message.role == "system" and not loop.first) %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
{%- elif message.role == "assistant" %}
{%- set content = message.content %}{%- set reasoning = '' %}
{%- if message.reasoning_content is defined and message.reasoning_content is not none %}
{%- set reasoning = message.reasoning_content %}
{%- elif '</think>' in message.content %}
{%- set content = message.content.split('</think>')[-1].lstrip('\\n') %}
{%- set reasoning = message.content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
{%- endif %}
{%- if loop.index0 > ns.last and (loop.last or reasoning) %}
{{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning.strip('\\n') + '\\n</think>\\n\\n' + content }}
{%- else %}{{- '<|im_start|>' + message.role + '\\n' + content }}{%- endif %}
{%- for call in message.tool_calls or [] %}
{{- '\\n<tool_call>\\n{"name": "' }}{{- call.function.name }}{{- '", "arguments": ' }}
{%- if call.function.arguments is string %}{{- call.function.arguments }}
{%- else %}{{- call.function.arguments | tojson }}{%- endif %}{{- '}\\n</tool_call>' }}
{%- endfor %}{{- '<|im_end|>\\n' }}
{%- elif message.role == "tool" %}
{%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}{{- '<|im_start|>user' }}{%- endif %}
{{- '\\n<tool_response>\\n' }}{{- message.content }}{{- '\\n</tool_response>' }}
{%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}{{- '<|im_end|>\\n' }}{%- endif %}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}
"""
ROLES = """{% set thinking_option = 'off' %}
{% if messages[0].role == 'system' %}<role>SYSTEM</role>{{ messages[0].content + '\\n' }}
{%- if not ('detailed thinking' in messages[0].content) %}detailed thinking {{ thinking_option }}{% endif %}<|role_end|>
{%- else %}<role>SYSTEM</role>detailed thinking {{ thinking_option }}<|role_end|>{% endif %}
{%- for message in messages %}
    {%- if message.content is string %}{% set content = message.content %}{% else %}{% set content = '' %}{% endif %}
    {%- if message.role == "user" %}{{- '<role>HUMAN</role>' + content + '<|role_end|>' }}
    {%- elif message.role == "assistant" %}{{- '<role>ASSISTANT</role>' + content }}
        {%- for tool_call in message.tool_calls or () %}
            {%- if (loop.first and content) or (not loop.first) %}{{- '\\n' }}{%- endif %}
            {%- if tool_call.function %}{%- set tool_call = tool_call.function %}{%- endif %}
            {{- '<tool_call>\\n{"name": "' ~ tool_call.name ~ '", "arguments": ' }}
            {{- tool_call.arguments | tojson(ensure_ascii=False, separators=(',', ':'), sort_keys=true) }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}<|role_end|>
    {%- elif message.role == "tool" %}{{- '<role>OBSERVATION</role>' + content + '<|role_end|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<role>ASSISTANT</role>' }}{%- endif %}"""
HEADERS = """{% set loop_messages = messages %}{% for message in loop_messages %}
{%- set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' %}
{%- if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"""
INSTRUCTIONS = """{{ bos_token }}
{%- if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] %}{% set rest = messages[1:] %}
{%- else %}{% set system = false %}{% set rest = messages %}{% endif %}
{%- for message in rest %}
{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{- raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}
{%- if loop.index0 == 0 and system %}{% set content = '<<SYS>>\\n' + system + '\\n<</SYS>>\\n\\n' + message['content'] %}
{%- else %}{% set content = message['content'] %}{% endif %}
{%- if message['role'] == 'user' %}{{ '[INST] ' + content.strip() + ' [/INST]' }}
{%- elif message['role'] == 'assistant' %}{% generation %}{{ ' ' + content.strip() + ' ' + eos_token }}{% endgeneration %}
{%- endif %}{% endfor %}"""
MACROS = """{%- macro parameters(properties, required) -%}
    {%- for key, value in properties | dictsort -%}
        {{- key }}:{description:<|"|>{{ value['description'] | default('') }}<|"|>,type:<|"|>{{ value['type'] | upper }}<|"|>
        {%- if key in required %},required{% endif %}}
        {%- if not loop.last %},{% endif -%}
    {%- endfor -%}
{%- endmacro -%}
{{ bos_token }}
{%- if tools or messages[0]['role'] in ['system', 'developer'] or enable_thinking is defined and enable_thinking -%}
    {{- '<|turn>system\\n' -}}
    {%- if enable_thinking is defined and enable_thinking -%}{{- '<|think|>' -}}{%- endif -%}
    {%- if messages[0]['role'] in ['system', 'developer'] -%}
        {{- messages[0]['content'] | trim -}}{%- set loop_messages = messages[1:] -%}
    {%- endif -%}
    {%- for tool in tools or [] -%}
        {{- '<|tool>' }}declaration:{{ tool['function']['name'] }}
        {{- parameters(tool['function']['parameters']['properties'], tool['function']['parameters']['required']) -}}
        {{- '<tool|>' -}}
    {%- endfor -%}{{- '<turn|>\\n' -}}
{%- endif -%}
{%- for message in loop_messages | default(messages) -%}
    {%- set role = 'model' if message['role'] == 'assistant' else message['role'] -%}
    {{- '<|turn>' + role + '\\n' -}}
    {%- if message['content'] is string -%}{{- message['content'] | trim -}}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'text' -%}{{- item['text'] | trim -}}{%- else -%}{% continue %}{%- endif -%}
        {%- endfor -%}
    {%- endif -%}
    {{- '<turn|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|turn>model\\n' -}}{%- endif -%}"""
DETAILS = """{% for m in messages %}{{ loop.index }}/{{ loop.length }} {{ loop.previtem.role if loop.previtem is defined }}
{%- if loop.cycle('a', 'b') == 'b' %}*{% endif %}{{ m | tojson(indent=2) }}{{ m | tojson(true, none, [', ', ':'], true) }}
{%- if loop.index > 2 %}{% break %}{% endif %}{% endfor %}
{{ messages | map(attribute='role') | join(',') }} {{ messages | selectattr('role', 'equalto', 'user') | list | length }}
{{ messages | rejectattr('role', 'equalto', 'user') | map(attribute='content') | list | tojson(indent=1, ensure_ascii=true) }}
{{ {'b': 1, 'a': [1.5, none, true, 'é<&>']} | tojson(sort_keys=true, separators=[',', ':']) }}{{ 'ab' | center(6) }}|
{{ 'x\\ny' | indent(2, true) }}{{ '%s-%03d' | format('a', 7) }}{{ 'aXa' | replace('a', 'b', 1) }}{{ ' a ' | trim | upper }}
{{- strftime_now('%Y') | length }}{{ '{:>4}|{}'.format(5, 'x') }}{{ 'abc'.center(9) }}{{ range(3) | list }}{{ 'é' * 3 }}
{% generation %}{% set inner = 1 %}{{ inner }}{% endgeneration %}{{ inner is defined }}{% filter upper %}x{% endfilter %}
{% set ns = namespace(n=0) %}{% for c in 'abc' if c != 'b' %}{% set ns.n = ns.n + 1 %}{% else %}none{% endfor %}{{ ns.n }}
{{ tools is none }}{{ documents is none }}{{ custom | default('unset', true) }}{{ eos_token }}{{ messages[-1].content[:3] }}"""

# Templates by the families of docs/models/index.md whose templates they resemble.
TEMPLATES = {
    "SDAR, Dream, DiffuCoder, Fast-dLLM v2, DreamReasoner, Nemotron": IM, "LLaDA2, LLaDA-MoE": ROLES, "LLaDA": HEADERS,
    "DiffuLLaMA, iLLaDA, Stable-DiffCoder": INSTRUCTIONS, "DiffusionGemma": MACROS,
    "further filters and globals": DETAILS,
}  # fmt: skip
# Templates that compare, search or cut text with special tokens that they wrote themselves.
OWN_TEXT = {
    "a token that was appended": "{% for m in messages %}{% set c = m.content %}{% if m.role == 'assistant' %}{% set c = c ~ '<|im_end|>' %}{% endif %}<|im_start|>{{ c }}{% if '<|im_end|>' not in c %}<|im_end|>{% endif %}{% endfor %}",
    "a token in a variable": "{% set open = '<|im_start|>' %}{{ open if open == '<|im_start|>' else 'other' }}{{ 'other' if open != '<|im_start|>' }}",
    "a prompt that is collected": "{% set ns = namespace(t='') %}{% for m in messages %}{% set ns.t = ns.t + '<|im_start|>' + m.role + m.content + '<|im_end|>' %}{% endfor %}{{ '' if ns.t.startswith('<|im_start|>system') else 'default' }}{{ ns.t }}{{ 'answer' if ns.t[-10:] == '<|im_end|>' }}{{ ns.t.endswith('<|im_end|>') }}",
    "reasoning that was wrapped": "{% for m in messages %}{% set x = '<think>' ~ m.content ~ '</think>' %}{{ x.split('</think>')[0] }}|{{ ('<think>' ~ m.content ~ '</think>').split('<think>')[-1] }}|{% if '<think>' in x and '</think>' in x %}<think></think>{{ x.split('</think>')[-1] }}{% endif %}{% endfor %}",
    "lengths and positions": "{% set x = '<|im_start|>a<|im_end|>' %}{{ x | length }} {{ x.find('a') }} {{ x.count('<|im_end|>') }} {{ x[0] }}{{ x[-1] }}{{ x[40] }} {{ x[12:] }} {{ x[3:] }} {{ x[::-1] }}",
    "parts": "{% set x = ' <think>a  b</think> ' %}{{ x.split() | join('|') }}{{ x.rsplit(none, 1) | join('|') }}{{ x.split(' ', 2) | join('|') }}{{ x.rpartition(' ') | join('|') }}{{ x.partition('a')[2] }}{{ x.splitlines() | join }}{{ x.strip(' >') }}|{{ x | trim }}|{{ x.lstrip() }}|{{ x.rstrip() }}|{{ x.strip().removeprefix('<think>').removesuffix('</think>') }}",
    "replacements": "{% set x = '<think>a</think>' %}{{ x.replace('</think>', '<|im_end|>') }}{{ x | replace('a', '<|im_end|>') }}{{ x.replace('think', 'thought', 1) }}{{ x.replace('', '-', 3) }}{{ messages[0].content.replace('i', '<think>') }}",
    "cases": "{% set x = '<think>a</think>' %}{{ x.lower() }}{{ x | upper }}{{ x.title() }}{{ x | lower }}{{ x.isupper() }}",
    "written arguments": "{{ '{}<|im_end|>{}'.format('a', '<think>') }}{{ '-'.join(['a', '<think>']) }}{{ '%s.' | format('<think>') }}{{ ['a', 'b'] | join('<|im_end|>') }}{{ nothing | default('<think>') }}",
    "roles": "{% set roles = {'user': '<|im_start|>', 'assistant': '<|im_end|>'} %}{% for m in messages %}{{ roles[m.role] }}{{ roles.get('x', '<think>') }}{{ {'user': '<think>'}[m.role] if m.role == 'user' }}{% endfor %}",
    "keys and tests": "{% set e = '<|im_end|>' %}{{ e is eq '<|im_end|>' }}{{ e in ['<|im_end|>'] }}{{ ['<|im_end|>'] == [e] }}{{ {'<|im_end|>': 1}[e] }}{{ [e] | select('equalto', '<|im_end|>') | list | length }}",
}
# Templates that give such text to functions which keep special tokens: they treat each character alike.
KEEPING = {
    "padding": "{% set x = '<think>a b</think>' %}{{ x | center(40) }}|{{ x.center(40, '*') }}|{{ x.ljust(30) }}|{{ x.rjust(30) }}|{{ x.zfill(30) }}|{{ x | truncate(12, true, '') }}|{{ x | truncate(100) }}|{{ x | indent(2, true) }}|{{ x | wordwrap(9) }}|{{ '{:>30}{}'.format(x, 1) }}|{{ '%30s' % x }}|{{ '%30s' | format(x) }}|{{ x.expandtabs() }}",
    "lists": "{% set l = ['b', '<think>', 'a'] %}{{ l | first }}{{ l[1] }}{{ l | reverse | join }}{{ l | join('|') }}{{ '-'.join(l) }}{{ l | unique | join }}{{ l | batch(2) | map('join') | join }}{{ (l + ['<|im_end|>']) | last }}{{ l | select('ne', 'a') | join }}{{ {'a': '<think>'}.values() | list | join }}{{ l.index('a') }}",
    "printed lists": "{% set l = ['b', '<think>', 1, none] %}{{ l }}{{ l | string }}{{ l ~ 'x' }}{{ '%s' % (l,) }}{{ {'k': '<think>'} }}{{ ('<think>',) }}{{ [l, {'a': l}] }}{{ l | tojson }}{{ l | pprint }}{{ '{}'.format(l) }}{{ {'a': '<think>'} | dictsort }}{{ {'a': '<think>'}.items() | list }}{{ l | length }}",
    "macros and blocks": "{% macro f(a) %}<think>{{ a }}{{ caller() }}{% endmacro %}{% call f('<|im_end|>') %}x{% endcall %}{% set y %}<think>{% endset %}{{ y | center(30) }}{% filter center(30) %}<think>{% endfilter %}",
}
# Templates whose functions depend on the characters of a special token, or change or separate them.
CHANGING = {
    "characters": "{% set x = '<think>a</think>' %}{{ x | list | join('.') }}{{ x | first }}{{ x | last }}{{ x | reverse }}{% for c in x %}{{ c }}.{% endfor %}{{ x | map('upper') | join }}{{ x | batch(2) | map('join') | join('|') }}{{ x | slice(3) | map('join') | join('|') }}{{ x | select('eq', '<') | list | length }}{{ '-'.join(x) }}{{ x | sort | join }}{{ x | unique | join }}{{ x | join(',') }}{{ x | min }}{{ x | list | length }}",
    "contents": "{% set x = '<think>a b</think>' %}{{ x | title }}{{ x | urlencode }}{{ x | wordcount }}{{ x | e }}{{ x | forceescape }}{{ x | striptags }}{{ x | urlize }}{{ {'a': x} | xmlattr }}{{ x | e + '<think>' }}{{ x | safe ~ '<think>' }}{{ x.casefold() }}{{ x.swapcase() }}{{ [x] | upper }}{{ [x] | replace('<', '(') }}{{ [x] | replace('<think>', '<|im_end|>') }}{{ x | int }}{{ x | trim('<>') }}{{ [x] | tojson(ensure_ascii=true) }}{{ x | capitalize }}{{ x.translate({60: '('}) }}",
    "order": "{% set l = ['z', '<think>', 'A', '<|im_end|>', '~'] %}{{ l | sort | join(' ') }}{{ l | max }}{{ l | min }}{{ l | sort(reverse=true) | list }}{{ {'b': 1, '<': 2} | dictsort }}{{ [{'k': 'z'}, {'k': '<think>'}] | sort(attribute='k') | map(attribute='k') | join }}{% for g in [{'k': 'z'}, {'k': '<think>'}] | groupby('k') %}{{ g.grouper }}{{ g.list }}{% endfor %}",
    "tests": "{% set e = '<think>' %}{{ {'<think>': 1}.get(e) }}{{ [e].index('<think>') }}{{ [e].count('<think>') }}{{ ('<think>', 1) == (e, 1) }}{{ e is lower }}{{ e is upper }}{{ e is in ['<think>'] }}{{ e is string }}{{ e.startswith(('a', '<think>')) }}{{ e < 'A' }}{{ [e] == ['<think>'] }}",
    "of messages": "{% for m in messages %}{{ (m.content ~ '<think>') | center(60) }}{{ [m.content, '<think>'] }}{{ ('<think>' + m.content) | reverse | reverse }}{{ [m.content ~ '<think>'] | tojson }}{% endfor %}",
}
CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": {"b": "é", "a": [1, 2]}}}
WITH_CALLS: list[dict[str, Any]] = [
    {"role": "user", "content": "add"},
    {"role": "assistant", "content": "", "tool_calls": [CALL, CALL]},
    {"role": "tool", "content": "3", "tool_call_id": "c1"},
    {"role": "user", "content": "thanks"},
]
CHATS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "hi"}],
    [{"role": "system", "content": " Be brief.\n"}, {"role": "user", "content": '  a é <b> & "c"\n'}],
    [{"role": "user", "content": "a"}, {"role": "assistant", "content": "<think>\nwell\n</think>\n\nb"},
     {"role": "user", "content": "東京 😀"}],
    WITH_CALLS,
    [{"role": "assistant", "content": "first"}, {"role": "assistant", "content": "second"}],
]  # fmt: skip
TOOL = {
    "type": "function",
    "function": {"name": "add", "description": "Adds <two> & more.",
                 "parameters": {"type": "object",
                                "properties": {"a": {"type": "number"}, "b": {"type": "string", "description": "é"}},
                                "required": ["a"]}},
}  # fmt: skip
VARIABLES: list[dict[str, Any]] = [
    {"add_generation_prompt": True},
    {"add_generation_prompt": False, "enable_thinking": False, "custom": "value"},
    {"add_generation_prompt": True, "tools": [TOOL], "enable_thinking": True},
]

"""What the documentation says is what the code does."""

import argparse
import ast
import json
import re
import shlex
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

from runtime.algorithms import algorithm_keys, get_algorithm
from runtime.algorithms.common import COMMON
from runtime.bench import sweep
from runtime.bench.__main__ import TOOLS
from runtime.config import FLAGS, parse
from runtime.models import families, resolve_family
from runtime.request.decoding import ENGINE_FIELDS, SELECTORS
from runtime.request.sampling_params import SamplingParams
from runtime.strategies import DecodingContext, Strategy, make_strategy, strategies
from tests.golden import GOLDEN
from tests.layout.pages import headings, slugs
from tools.docs import decoding_fields, models
from tools.docs import request_fields as request_markdown
from tools.docs.flags import with_table

ROOT = Path(__file__).parents[1]
PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    "docs/server.md",
    "docs/tools.md",
    "docs/decoding.md",
    "docs/decoding-rules.md",
    "docs/models.md",
    "docs/performance.md",
    "docs/security.md",
    "docs/architecture.md",
]


def page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def code(name: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page(name), re.DOTALL)


def test_flags_are_the_tables():
    assert page("docs/server.md") == with_table(page("docs/server.md")), "run python -m tools.docs.flags"


@cache
def bench_flags() -> set[str]:
    """Of every tool of runtime.bench."""
    found = set()
    for tool in TOOLS:
        parser = argparse.ArgumentParser()
        import_module(f"runtime.bench.{tool}").add_arguments(parser)
        found |= set(parser._option_string_actions)
    return found


@pytest.mark.parametrize("name", PAGES)
def test_flags_that_are_named_exist(name):
    text = page(name)
    own = {f"--{s}" for f in FLAGS for s in f.spellings} | {"--help"}
    tools = bench_flags() | {"--hypothesis-profile", "--timeout"}
    tools |= {"--namespace", "--create-namespace", "--set", "--wait", "--for", "--from-literal"}  # helm's and kubectl's
    # of tests.siege, tests.without, tests.layout.baselines and tests.under_load
    tools |= {"--all", "--list", "--uses", "--write", "--repeat", "--passes"}
    for flag in re.findall(r"(?<![\w-])--[a-z][a-z-]+", re.sub(r"<!--.*?-->", "", text)):
        assert flag in own | tools, flag


def test_server_commands_parse():
    for name in ("README.md", "docs/models.md"):
        for args in re.findall(r'make serve ARGS="(.*?)"', page(name)):
            parse(shlex.split(args), {})
    for block in code("docs/server.md", "yaml"):
        import yaml

        assert set(yaml.safe_load(block)) <= {f.name for f in FLAGS}


def test_tools_and_targets_exist():
    makefile = page("Makefile")
    targets = set(re.findall(r"^([a-z0-9-]+):", makefile, re.MULTILINE))
    for name in PAGES:
        for target in re.findall(r"(?:^|`)make ([a-z0-9-]+)", page(name), re.MULTILINE):
            assert target in targets, target
    for tool in re.findall(r"runtime\.bench (\w+)", page("README.md")):
        assert tool in TOOLS


def test_the_picture_of_the_rules_is_the_commands(monkeypatch):
    monkeypatch.chdir(ROOT)
    text = page("docs/decoding.md")
    (command,) = re.findall(r"python -m runtime\.bench sweep (.*)", text)
    parser = argparse.ArgumentParser()
    sweep.add_arguments(parser)
    picture = parser.parse_args(shlex.split(command)).plot
    assert f"]({picture.relative_to('docs')})" in text
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size <= 120_000


def test_python_examples_use_what_there_is():
    import runtime

    for block in code("README.md", "python"):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and node.module == "runtime":
                assert all(alias.name in runtime.__all__ for alias in node.names)
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "SamplingParams":
                SamplingParams(**{k.arg: ast.literal_eval(k.value) for k in node.keywords})


@pytest.mark.all_entries
def test_decoding_fields_are_the_table():
    text = page("docs/decoding.md")
    assert text == decoding_fields.with_table(text), "run python -m tools.docs.decoding_fields"


def test_fields_of_every_request_are_documented():
    text = page("docs/decoding.md")
    for field in (*SELECTORS, *ENGINE_FIELDS):
        assert f"`{field}`" in text, field


def described(section: str) -> dict[str, set[str]]:
    """Of each paragraph of a section of decoding.md: the fields that it names at its end."""
    text = re.search(rf"\n## {section}\n(.*?)(?=\n## )", page("docs/decoding.md"), re.DOTALL)[1]
    paragraphs = dict(re.findall(r"### (\w+)\n\n(.*?)(?=\n###|\Z)", text, re.DOTALL))
    fields = {key: re.search(r"\nFields: (.*)\.$", sentence.strip(), re.DOTALL) for key, sentence in paragraphs.items()}
    return {key: set(re.findall(r"`(.*?)`", found[1])) for key, found in fields.items()}


def test_a_requests_fields_are_the_table():
    text = page("docs/server.md")
    assert text == request_markdown.with_table(text), "run python -m tools.docs.request_fields"


RULES, STRATEGIES = described("Rules"), described("Strategies")


def made(key: str) -> Strategy:
    context = DecodingContext(block_size=32, buffer_size=None, prefix_caching=True, max_model_len=4096)
    return make_strategy(key, (key,), context)


def test_every_entry_is_described():
    assert set(algorithm_keys()) <= RULES.keys()
    assert set(strategies()) <= STRATEGIES.keys()
    section = page("docs/models.md").split("## Family by family")[1].split("## What was compared with what")[0]
    for key in {resolve_family(key, {}).key for key in families()}:
        assert f"`{key}`" in section, key


def test_every_entry_has_its_rules():
    titles = headings(page("docs/decoding-rules.md"))
    assert {f"Algorithm `{key}`" for key in algorithm_keys()} <= set(titles)
    assert {f"Strategy `{key}`" for key in strategies()} <= set(titles)


def test_the_contents_of_the_decoding_rules_are_its_headings():
    text = page("docs/decoding-rules.md")
    listed = set(re.findall(r"\(#([\w-]+)\)", text.split("Contents:")[1].split("\n## ")[0]))
    assert listed == {slug for slug in slugs(text) if slug != "decoding-rules" and not slug.startswith("invariant-")}


@pytest.mark.parametrize("key", RULES)
def test_a_rules_paragraph_names_its_fields(key):
    assert RULES[key] == {field.name for field in get_algorithm(key).fields if field not in COMMON}


@pytest.mark.parametrize("key", STRATEGIES)
def test_a_strategys_paragraph_and_the_table_name_its_fields(key):
    assert STRATEGIES[key] == {field.name for field in made(key).fields}
    for field in STRATEGIES[key]:
        assert f"| `{field}` |" in page("docs/decoding.md"), field


@pytest.mark.all_entries
def test_families_and_shapes_are_the_tables():
    assert page("docs/models.md") == models.with_tables(page("docs/models.md")), "run python -m tools.docs.models"


@pytest.mark.parametrize(
    ("family", "folder", "kind", "sentence"),
    [
        ("sdar", "sdar", "decode", "{},"),
        ("sdar", "sdar_moe", "decode", ", {}"),
        ("llada", "llada", "decode", "{}"),
        ("llada", "d2f_llada", "decode", "`d2f` {}"),
        ("dream", "dream", "decode", "{}"),
        ("dream", "d2f_dream", "decode", "`d2f` {}"),
        ("fast_dllm_v2", "fast_dllm_v2", "decode", "{}"),
        ("diffusion_gemma", "diffusion_gemma", "generate", "{}, with recorded draws"),
    ],
)
def test_golden_answers_are_counted(family, folder, kind, sentence):
    compared = page("docs/models.md").split("## What was compared with what")[1]
    cases = json.loads((GOLDEN / folder / "cases.json").read_text())
    count = sum(case["kind"] == kind for case in cases)
    (row,) = [line for line in compared.splitlines() if line.startswith(f"| `{family}`")]
    assert sentence.format(count) in row.split("|")[3], (folder, count)


def test_modes_of_threshold_and_edit_are_documented():
    text = page("docs/decoding.md")
    for mode in ("speed", "balanced", "quality"):
        edit = get_algorithm("edit").modes[mode]
        row = f"| `{mode}` | {get_algorithm('threshold').modes[mode]['accept_threshold']} | "
        assert row + f"{edit['accept_threshold']}, {edit['edit_threshold']} |" in text


def test_routes_and_fields_are_documented():
    from runtime.server.routes import chat, completions, generate, status, tokens
    from runtime.server.schemas import Generation

    text = page("docs/server.md")
    for module in (chat, completions, generate, status, tokens):
        for route in module.router.routes:
            assert route.path.replace("/{name:path}", "") in text, route.path
    for field in set(Generation.model_fields) - {"stop_token_ids", "min_tokens"}:
        assert f"`{field}`" in text, field


def test_metrics_are_documented():
    from runtime.server.metrics import Metrics
    from runtime.server.observed import Observed

    text = page("docs/server.md")
    for name in re.findall(r"^# TYPE (\w+)", Metrics("m", Observed()).text().decode(), re.MULTILINE):
        if not name.endswith("_created"):
            assert f"`{name}" in text, name


def test_limits_of_the_security_page_are_the_codes():
    from runtime.server import bodies, conversation, preparing, schemas, shape
    from runtime.server.lanes import MAX_WAITING
    from runtime.server.wire.limits import Limits
    from runtime.tokenizer import template_limits

    rows = {
        line.split("|")[1].strip(): line.split("|")[2] for line in page("docs/security.md").splitlines() if "|" in line
    }
    limits = Limits()
    kib, mib = 2**10, 2**20
    for sentence, *values in (
        ("request line", f"{limits.head_bytes // kib} KiB", f"{limits.headers} fields"),
        ("a body", f"{bodies.MAX_BODY // mib} MiB"),
        ("requests that wait on", f"{limits.queued}"),
        ("a head that", f"{limits.head_seconds:.0f} s"),
        ("a body that", f"{limits.body_seconds:.0f} s"),
        ("an idle", f"{limits.idle_seconds:.0f} s"),
        (
            "a refused",
            f"{limits.linger_seconds:.0f} s",
            f"{limits.discard_bytes // mib} MiB",
            f"{limits.quiet_seconds:.0f} s",
        ),
        ("an answer of which", f"{limits.stall_seconds:.0f} s"),
        ("connections", f"{limits.connections:,}"),
        ("room beside", f"{limits.spare} "),
        ("what all", f"{limits.held_bytes // mib} MiB", f"{limits.body_weight}"),
        (
            "values",
            f"{shape.MAX_VALUES:,}; {shape.MAX_STRINGS:,}; {shape.MAX_FIELDS:,}; {shape.MAX_CONTAINERS:,}",
            f"; {shape.MAX_DIGITS} ",
        ),
        ("bodies of more", f"{preparing.MAX_WAITING_BODIES // mib} MiB"),
        ("messages", f"{conversation.MAX_MESSAGES:,}", f"{conversation.MAX_PARTS:,}"),
        ("entries", f"{schemas.MAX_ENTRIES}"),
        ("prompts of", f"{preparing.MAX_PROMPT_TOKENS:,}"),
        ("characters of long", f"{MAX_WAITING // mib} Mi"),
        ("what a chat template", f"{template_limits.MAX_CHARS // mib} Mi", f"{template_limits.MAX_SECONDS:g} s"),
    ):
        (row,) = [value for name, value in rows.items() if re.match(rf"{sentence}\b", name)][:1]
        assert all(value in row for value in values), (sentence, values, row)


def test_no_text_names_an_index_or_this_machine():
    for name in [*PAGES, "CHANGELOG.md", "Makefile", "pyproject.toml", ".pre-commit-config.yaml"]:
        assert not re.search(
            r"pypi|index-url|files\.pythonhosted|/work/", page(name).replace("--no-emit-index-url", "")
        ), name

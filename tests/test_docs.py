"""Tests that the documentation matches the code."""

import argparse
import ast
import errno
import json
import os
import re
import shlex
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

from runtime.algorithms.base import COMMON, algorithm_keys, get_algorithm
from runtime.bench import __main__ as bench
from runtime.bench import sweep
from runtime.config import FLAGS, parse
from runtime.models.base import families, resolve_family
from runtime.models.published import checks
from runtime.request.decoding import ENGINE_FIELDS, SELECTORS
from runtime.request.sampling_params import SamplingParams
from runtime.scheduling.strategy import DecodingContext, Strategy
from runtime.strategies.registry import make_strategy, strategies
from tests.golden import GOLDEN
from tests.layout.pages import code, headings, slugs
from tools.bench import __main__ as developer_bench
from tools.docs import decoding_fields, models
from tools.docs import request_fields as request_markdown
from tools.docs.flags import with_table

ROOT = Path(__file__).parents[1]
PAGES = ["README.md", "CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md"]
PAGES += [*sorted(f"{path.relative_to(ROOT)}" for path in (ROOT / "docs").rglob("*.md"))]
PAGES = [name for name in PAGES if not name.startswith("docs/benchmarks/")]
FLAGS_PAGE, FIELDS_PAGE = "docs/reference/flags.md", "docs/reference/request-fields.md"
DECODING_PAGE, DEFINITIONS_PAGE = "docs/guide/decoding.md", "docs/research/decoding-rules.md"
RECIPES_PAGE = "docs/models/recipes.md"
BENCHES = {"runtime.bench": bench.TOOLS, "tools.bench": developer_bench.TOOLS}


def page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_table_of_flags_is_up_to_date():
    assert page(FLAGS_PAGE) == with_table(page(FLAGS_PAGE)), "run python -m tools.docs.flags"


@cache
def bench_flags() -> set[str]:
    """Returns the flags of all tools of runtime.bench and of tools.bench."""
    found = set()
    for package, tools in BENCHES.items():
        for tool in tools:
            parser = argparse.ArgumentParser()
            import_module(f"{package}.{bench.MODULES.get(tool, tool)}").add_arguments(parser)
            found |= set(parser._option_string_actions)
    return found


# Flags of other programs that occur in pages.
OTHER_FLAGS = {
    "pytest": {"--hypothesis-profile", "--timeout"},
    "tests": {"--all", "--list", "--uses", "--write", "--repeat", "--passes", "--jobs"},  # tools in tests/
    "docker": {"--gpus", "--name", "--rm", "--volume"},
    "helm": {
        *("--create-namespace", "--kube-version", "--destination", "--namespace", "--reset-then-reuse-values", "--set"),
        *("--show-only", "--take-ownership", "--version", "--wait"),
    },
    "kubectl": {"--all", "--cascade", "--for", "--from-literal", "--overwrite", "--prefix", "--previous", "--replicas",
                "--server-side", "--tail", "--type", "--watch"},
    "Diffulex": {"--auto-max-nfe-tpf-floor", "--auto-max-nfe-warmup-steps", "--deepep-mode", "--moe-dispatcher-backend",
                 "--deepep-num-max-dispatch-tokens-per-rank", "--moe-gemm-impl", "--moe-topk-impl"},
    "vLLM": {"--enable-auto-tool-choice", "--enable-lora", "--lora-modules", "--max-num-seqs",
             "--no-enable-prefix-caching", "--trust-remote-code"},
    "SGLang": {"--chunked-prefill-size", "--context-length", "--disable-cuda-graph", "--disable-radix-cache",
               "--dp-size", "--disable-decode-cuda-graph", "--disable-prefill-cuda-graph", "--enable-lora",
               "--max-queued-requests", "--lora-paths", "--max-loras-per-batch", "--max-running-requests",
               "--mem-fraction-static", "--model-path", "--tp-size"},
    "llm-d": {"--refresh-metrics-interval"},
    "pip": {"--no-deps", "--require-hashes"},
    "uv": {"--torch-backend"},
    "velero": {"--include-namespaces", "--selector"},
    "openapi-python-client": {"--url"},
    "unmask models": {"--json"},
    "runtime.fetch": {"--keep", "--result", "--to", "--writer"},
    "unmask pull": {"--to"},
    "unmask verify": {"--against", "--answers", "--print-script", "--record"},
    "placeholders": {"--flag"},
}  # fmt: skip


@pytest.mark.parametrize("name", PAGES)
def test_flags_that_are_named_exist(name):
    text = page(name)
    own = {f"--{s}" for f in FLAGS for s in f.spellings} | {"--help", "--help-all"}
    known = own | bench_flags() | set().union(*OTHER_FLAGS.values())
    for flag in re.findall(r"(?<![\w-])--[a-z][a-z-]+", re.sub(r"<!--.*?-->", "", text)):
        assert flag in known, flag


def test_server_commands_parse():
    for name in PAGES:
        for args in re.findall(r'make serve ARGS="(.*?)"', page(name)):
            parse(shlex.split(args), {})
    for block in code(FLAGS_PAGE, "yaml"):
        import yaml

        assert set(yaml.safe_load(block)) <= {f.name for f in FLAGS}


def test_tools_and_targets_exist():
    makefile = page("Makefile")
    targets = set(re.findall(r"^([a-z0-9-]+):", makefile, re.MULTILINE))
    for name in PAGES:
        for target in re.findall(r"(?:^|`)make ([a-z0-9-]+)", page(name), re.MULTILINE):
            assert target in targets, target
        for package, tool in re.findall(r"(\w+\.bench) (\w+)", page(name).replace("bench TOOL", "")):
            assert tool in BENCHES[package], tool


def test_the_picture_of_the_algorithms_is_the_output_of_the_documented_command(monkeypatch):
    monkeypatch.chdir(ROOT)
    text = page(DECODING_PAGE)
    (command,) = re.findall(r"python -m runtime\.bench sweep (.*)", text.replace("\\\n", ""))
    parser = argparse.ArgumentParser()
    sweep.add_arguments(parser)
    picture = parser.parse_args(shlex.split(command)).plot
    assert f"]({os.path.relpath(picture, Path(DECODING_PAGE).parent)})" in text
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_the_tables_of_tools_list_tools_of_bench():
    table = page("docs/operations/performance.md").split("\n### Tools\n")[1].split("\n### ")[0]
    listed = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    assert sorted(listed) == sorted(tool for tools in BENCHES.values() for tool in tools)


def test_python_examples_use_existing_names():
    import runtime

    for block in code("docs/get-started/laptop.md", "python"):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and node.module == "runtime":
                assert all(alias.name in runtime.__all__ for alias in node.names)
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "SamplingParams":
                SamplingParams(**{k.arg: ast.literal_eval(k.value) for k in node.keywords})


@pytest.mark.all_entries
def test_the_table_of_decoding_fields_is_up_to_date():
    text = page(DECODING_PAGE)
    assert text == decoding_fields.with_table(text), "run python -m tools.docs.decoding_fields"


def test_fields_of_every_request_are_documented():
    text = page(DECODING_PAGE)
    for field in (*SELECTORS, *ENGINE_FIELDS):
        assert f"`{field}`" in text, field


def described(section: str) -> dict[str, set[str]]:
    """Returns the fields that each paragraph in a section of docs/guide/decoding.md lists at its end, by heading."""
    text = re.search(rf"\n## {section}\n(.*?)(?=\n## )", page(DECODING_PAGE), re.DOTALL)[1]
    paragraphs = dict(re.findall(r"### (\w+)\n\n(.*?)(?=\n###|\Z)", text, re.DOTALL))
    fields = {}
    for key, paragraph in paragraphs.items():
        found = re.search(r"\nFields: (.*)\.$", paragraph.strip(), re.DOTALL)
        assert found, f"docs/guide/decoding.md, {key}: end the paragraph with 'Fields: `NAME`.' or 'Fields: none.'"
        fields[key] = set(re.findall(r"`(.*?)`", found[1]))
    return fields


def test_the_table_of_request_fields_is_up_to_date():
    text = page(FIELDS_PAGE)
    assert text == request_markdown.with_table(text), "run python -m tools.docs.request_fields"


ALGORITHMS, STRATEGIES = described("Algorithms"), described("Strategies")


def made(key: str) -> Strategy:
    context = DecodingContext(block_size=32, buffer_size=None, prefix_caching=True, max_model_len=4096)
    return make_strategy(key, (key,), context)


def test_every_entry_is_described():
    missing = set(algorithm_keys()) - ALGORITHMS.keys()
    assert not missing, f"docs/guide/decoding.md, section Algorithms: add paragraphs for {missing}"
    missing = set(strategies()) - STRATEGIES.keys()
    assert not missing, f"docs/guide/decoding.md, section Strategies: add paragraphs for {missing}"
    recipes = page(RECIPES_PAGE)
    missing = {key for key in {resolve_family(key, {}).key for key in families()} if f"`{key}`" not in recipes}
    assert not missing, f"docs/models/recipes.md: add sections for {missing}"


def test_every_entry_is_defined():
    titles = {*(f"Algorithm `{key}`" for key in algorithm_keys()), *(f"Strategy `{key}`" for key in strategies())}
    missing = titles - set(headings(page(DEFINITIONS_PAGE)))
    assert not missing, f"docs/research/decoding-rules.md: add headings {missing}"


def test_the_contents_of_the_decoding_rules_are_its_headings():
    text = page(DEFINITIONS_PAGE)
    listed = set(re.findall(r"\(#([\w-]+)\)", text.split("Contents:")[1].split("\n## ")[0]))
    expected = {slug for slug in slugs(text) if slug != "decoding-rules" and not slug.startswith("invariant-")}
    assert listed == expected, f"correct the list after 'Contents:' in {DEFINITIONS_PAGE}"


@pytest.mark.parametrize("key", ALGORITHMS)
def test_the_paragraph_of_an_algorithm_names_its_fields(key):
    declared = {field.name for field in get_algorithm(key).fields if field not in COMMON}
    assert ALGORITHMS[key] == declared, f"docs/guide/decoding.md, {key}: correct the line 'Fields:'"


@pytest.mark.parametrize("key", STRATEGIES)
def test_a_strategys_paragraph_and_the_table_name_its_fields(key):
    declared = {field.name for field in made(key).fields}
    assert STRATEGIES[key] == declared, f"docs/guide/decoding.md, {key}: correct the line 'Fields:'"
    for field in STRATEGIES[key]:
        assert f"| `{field}` |" in page(DECODING_PAGE), field


@pytest.mark.all_entries
@pytest.mark.parametrize("name", models.TABLES)
def test_the_tables_of_models_are_up_to_date(name):
    text = page(f"docs/{name}")
    assert text == models.with_tables(name, text), "run python -m tools.docs.models"


@pytest.mark.parametrize(
    ("family", "folder", "kind", "text"),
    [
        ("sdar", "sdar", "decode", "{}"), ("sdar_moe", "sdar_moe", "decode", "{}"), ("llada", "llada", "decode", "{},"),
        ("llada", "d2f_llada", "decode", "`d2f` {}"), ("dream", "dream", "decode", "{},"),
        ("dream", "d2f_dream", "decode", "`d2f` {}"), ("fast_dllm_v2", "fast_dllm_v2", "decode", "{}"),
        ("diffusion_gemma", "diffusion_gemma", "generate", "{}, with recorded draws"),
    ],
)  # fmt: skip
def test_golden_answers_are_counted(family, folder, kind, text):
    cases = json.loads((GOLDEN / folder / "cases.json").read_text())
    count = sum(case["kind"] == kind for case in cases)
    assert text.format(count) in checks()[family].answers, (folder, count)


def test_modes_of_threshold_and_edit_are_documented():
    text = page(DECODING_PAGE)
    for mode in ("speed", "balanced", "quality"):
        edit = get_algorithm("edit").modes[mode]
        row = f"| `{mode}` | {get_algorithm('threshold').modes[mode]['accept_threshold']} | "
        assert row + f"{edit['accept_threshold']}, {edit['edit_threshold']} |" in text


def test_routes_and_fields_are_documented():
    from runtime.server.admin import routes, tokenize
    from runtime.server.generate import serving
    from runtime.server.openai import chat, completions
    from runtime.server.serving.generation import GenerationRequest

    text = "".join(page(name) for name in PAGES if name.startswith(("docs/reference/", "docs/guide/")))
    routers = [routes.adapter_router, *(module.router for module in (chat, completions, serving, routes, tokenize))]
    for route in (route for router in routers for route in router.routes):
        assert route.path.replace("/{name:path}", "") in text, route.path
    for field in set(GenerationRequest.model_fields) - {"stop_token_ids", "min_tokens"}:
        assert f"`{field}`" in text, field


def test_metrics_are_documented():
    from runtime.server.metrics import Metrics, RequestMetrics

    text = page("docs/operations/observability.md")
    for name in re.findall(r"^# TYPE (\w+)", Metrics("m", RequestMetrics()).text().decode(), re.MULTILINE):
        if not name.endswith("_created"):
            assert f"`{name}" in text, name


def test_messages_in_the_troubleshooting_page_match_the_code():
    """Three dots in a message replace a variable part."""
    literals = {
        node.value
        for path in (ROOT / "runtime").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    page_text = page("docs/operations/troubleshooting.md").split("\n## The server does not start\n")[1]
    cells = re.findall(r"^\| (.*?) \|", page_text, re.MULTILINE)
    messages = {span for cell in cells for span in cell.split("`")[1::2] if " " in span}
    messages.remove(os.strerror(errno.EADDRINUSE))
    assert len(messages) > 15
    for part in (part.strip() for message in messages for part in message.split("...")):
        assert any(part in literal for literal in literals), part


def test_limits_in_the_security_page_match_the_code():
    from runtime.server.http_protocol.limits import Limits
    from runtime.server.serving import preprocessor, request_body
    from runtime.server.serving.executors import MAX_WAITING_CHARS
    from runtime.server.serving.generation import MAX_ENTRIES
    from runtime.tokenizer import template_sandbox

    lines = [line for line in page("docs/operations/security.md").splitlines() if "|" in line]
    rows = {line.split("|")[1].strip(): line.split("|")[2] for line in lines}
    limits = Limits()
    kib, mib = 2**10, 2**20
    for sentence, *values in (
        ("request line", f"{limits.head_bytes // kib} KiB", f"{limits.headers} fields"),
        ("a body", f"{request_body.MAX_BODY // mib} MiB"),
        ("a head that", f"{limits.head_seconds:.0f} s"),
        ("a body that", f"{limits.body_seconds:.0f} s"),
        ("an idle", f"{limits.idle_seconds:.0f} s"),
        (
            "a refused",
            f"{limits.drain_seconds:.0f} s",
            f"{limits.discard_bytes // mib} MiB",
            f"{limits.quiet_seconds:.0f} s",
        ),
        ("an answer of which", f"{limits.stall_seconds:.0f} s"),
        ("connections", f"{limits.connections:,}"),
        ("room beside", f"{limits.probe_slots} "),
        ("what all", f"{limits.buffered_bytes // mib} MiB", f"{limits.body_weight}"),
        (
            "values",
            f"{request_body.MAX_VALUES:,}; {request_body.MAX_STRINGS:,}; {request_body.MAX_FIELDS:,}; "
            f"{request_body.MAX_CONTAINERS:,}",
            f"; {request_body.MAX_DIGITS} ",
        ),
        ("bodies of more", f"{preprocessor.MAX_WAITING_BODIES // mib} MiB"),
        ("messages", f"{request_body.MAX_MESSAGES:,}", f"{request_body.MAX_PARTS:,}"),
        ("entries", f"{MAX_ENTRIES}"),
        ("prompts of", f"{preprocessor.MAX_PROMPT_TOKENS:,}"),
        ("characters of long", f"{MAX_WAITING_CHARS // mib} Mi"),
        ("what a chat template", f"{template_sandbox.MAX_CHARS // mib} Mi", f"{template_sandbox.MAX_SECONDS:g} s"),
    ):
        (row,) = [value for name, value in rows.items() if re.match(rf"{sentence}\b", name)][:1]
        assert all(value in row for value in values), (sentence, values, row)

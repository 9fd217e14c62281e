"""Tests that references in comments, docstrings and pages resolve, and of the detection of those that do not."""

import pytest

from tests.layout import references
from tests.layout.references import broken_links, comments, find, findings_in, hash_comments
from tests.layout.source import Text, docstrings

PAGE = "docs/server.md"


@pytest.mark.all_entries  # files of removed entries are referred to
def test_references_of_the_repository_resolve():
    assert [str(finding) for finding in find()] == []


def dangling(text: str, path: str = "runtime/engine/engine.py") -> list[str]:
    return [finding.reference for finding in findings_in(path, Text(1, text))]


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """Yields the root of a repository with one page, one module, and one package of the operator."""
    for path, content in (
        ("docs/server.md", "# 3. Flags\n\n## 3.1 More `flags`\n\n## Flags & fields\n\n## Flags & fields\n"),
        ("runtime/__init__.py", '__all__ = ["LLM"]\n\nif TYPE_CHECKING:\n    from runtime.llm import LLM\n'),
        ("runtime/llm.py", "class LLM:\n    def chat(self):\n        self.engine = 1\n\nclass Child(LLM):\n    pass\n"),
        ("operator/unmask_operator/api/spec.py", "SPEC = 1\n"),
    ):
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    monkeypatch.setattr(references, "ROOT", tmp_path)
    caches = (references.resolves, references.link_resolves, references._dotted_resolves, references._members)
    for cache in caches:
        cache.cache_clear()
    yield tmp_path
    for cache in caches:
        cache.cache_clear()


@pytest.mark.parametrize(
    "text",
    [
        "See docs/server.md.",
        "See server.md, section 3.1, and `server.md` sections 3 and 3.1.",
        'See docs/server.md, Flags & fields. See server.md, "Flags & fields".',
        "See docs/server.md#31-more-flags and docs/server.md#flags--fields-1.",
        "`runtime/llm.py`, `runtime/`, `runtime/*.py`, `pytest runtime/llm.py::test_it`, ``api/spec.py``",
        "`runtime.LLM`, `runtime.llm.LLM.chat`, `runtime.llm.LLM.engine`, `runtime.llm.Child.anything`",
        "`unmask_operator.api.spec.SPEC`, run python -m runtime.llm --flag",
        "`text/plain`, `org/model`, `runtime/models/NAME.py`, `*.md`, `np.dtype`, `my.runtime.llm.x`",
        "runtime.missing and runtime/missing.py without backticks",
        "```\n`runtime/missing.py` in a block of code\n```",
    ],
)
def test_resolves(tree, text):
    assert dangling(text) == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("missing.md", ["missing.md"]), ("docs/missing.md says so.", ["docs/missing.md"]),
        ("server.md 3.2", ["server.md 3.2"]), ("server.md 3, 3.1 and 4", ["server.md 4"]),
        ("server.md sections 1 to 3", ["server.md 1"]),
        ("docs/server.md, Missing\nheading.", ["docs/server.md, Missing heading"]),
        ("docs/server.md#missing", ["docs/server.md#missing"]), ("`runtime/missing.py`", ["runtime/missing.py"]),
        ("`state/missing.py`", ["state/missing.py"]), ("`pytest -x runtime/missing`", ["runtime/missing"]),
        ("``runtime.missing``", ["runtime.missing"]), ("`runtime.llm.Missing`", ["runtime.llm.Missing"]),
        ("`runtime.llm.LLM.missing()`", ["runtime.llm.LLM.missing"]),
        ("python -m runtime.missing", ["runtime.missing"]),
    ],
)  # fmt: skip
def test_dangles(tree, text, found):
    assert dangling(text) == found


EXISTING = ("server.md", "#flags--fields", "server.md#3-flags", "../runtime/llm.py", "https://a.b/c")
MISSING = ("missing.md", "docs/server.md", "#missing", "server.md#missing", "../missing/")


@pytest.mark.parametrize("target", [*EXISTING, *MISSING])
def test_links_whose_target_is_missing_are_found_outside_code(tree, target):
    for text, is_link in ((f"a [link]({target})", True), (f"`[a]({target})`\n```\n[a]({target})\n```", False)):
        found = [finding.reference for finding in broken_links(PAGE, Text(1, text))]
        assert found == ([target] if is_link and target in MISSING else [])


def test_a_finding_has_the_line_of_the_reference(tree):
    (docstring,) = docstrings('"""First.\n\nSee missing.md."""')
    assert [finding.line for finding in findings_in("a.py", docstring)] == [3]
    (block,) = comments("x = 1\n# first\n# see missing.md\n# 4 for more\n")
    assert [(finding.line, finding.reference) for finding in findings_in("a.py", block)] == [(3, "missing.md 4")]


def test_text_in_strings_is_no_comment():
    assert list(comments('x = "# missing.md"\n')) == []


def test_comments_of_other_files_are_read_in_blocks():
    blocks = hash_comments("a: 1\n  # see server.md\n  # 3.1\nb: 2 # not read\n# c\n")
    assert [(block.line, block.text) for block in blocks] == [(2, " see server.md\n 3.1"), (5, " c")]

"""Tests of the documentation site: its navigation, and its links to copies of repository files."""

import re
from pathlib import Path

import pytest
import yaml

from tests.layout.pages import slugs
from tools.docs import site
from tools.docs.diagrams import on_white

ROOT = Path(__file__).parents[1]


def pages_of(nav) -> list[str]:
    """Returns the pages of a navigation in order."""
    if isinstance(nav, str):
        return [nav]
    return [page for entry in (nav.values() if isinstance(nav, dict) else nav) for page in pages_of(entry)]


def test_every_page_is_in_the_navigation_once():
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    index = "benchmarks/index.md"
    pages = [page for page in pages_of(config["nav"]) if not page.startswith(site.COPIES)]
    assert index in pages
    pages.remove(index)
    pages += [f"benchmarks/{page}" for page in re.findall(r"^\* \[.+\]\((.+)\)$", site.benchmarks(), re.MULTILINE)]
    assert sorted(pages) == sorted(f"{page.relative_to(ROOT / 'docs')}" for page in (ROOT / "docs").rglob("*.md"))


@pytest.mark.parametrize("heading", ["Fields of a request", "`full` and `d2f`", "A tool, or two: the *rest*", "a  b"])
def test_anchors_are_those_of_the_repository(heading):
    assert slugs(f"# {heading}\n") == {site.slug(heading)}


@pytest.mark.parametrize(
    ("path", "link", "expected"),
    [
        ("docs/guide/tools.md", "[a](decoding.md#fields)", "[a](decoding.md#fields)"),
        ("docs/guide/tools.md", "[a](../../CONTRIBUTING.md#tests)", "[a](../repository/CONTRIBUTING.md#tests)"),
        ("docs/index.md", "[a](../examples/hardened.yaml)", "[a](repository/examples/hardened.yaml.md)"),
        ("docs/index.md", "[the `a`](../examples/)", "the `a`"),
        ("docs/index.md", "[a](#b) [c](https://d.e/f)", "[a](#b) [c](https://d.e/f)"),
        ("CONTRIBUTING.md", "[a](docs/guide/tools.md)", "[a](../guide/tools.md)"),
        ("CONTRIBUTING.md", "[a](e2e/README.md)", "[a](e2e/README.md)"),
        ("docs/index.md", "```\n[a](../README.md)\n```", "```\n[a](../README.md)\n```"),
    ],
)
def test_links_for_the_site(path, link, expected):
    assert site.with_site_links(link, path) == expected


def test_files_outside_docs_are_found_through_other_files():
    found = site.outside(["docs/index.md"])
    assert {"CONTRIBUTING.md", "CHANGELOG.md"} <= set(found)
    assert not any(path.startswith("docs/") for path in found)


def test_a_copied_file_is_a_code_block():
    assert re.fullmatch(
        r"# examples/demo-service.yaml\n\n```yaml\n.*\n```\n", site.copied_text("examples/demo-service.yaml"), re.DOTALL
    )


def test_requests_to_other_hosts_are_found(tmp_path):
    (tmp_path / "page.html").write_text(
        '<a href="https://a.b"><img src="c.png"><script src="//d.e/f.js"></script><link rel="preconnect" href="https://g.h">'
        '<link rel="canonical" href="https://i.j">'
    )
    (tmp_path / "style.css").write_text("a { background: url(https://k.l/m.png) } b { background: url('n.png') }")
    found = [request.split(": ")[1] for request in site.foreign_requests(tmp_path)]
    assert found == ["//d.e/f.js", "https://g.h", "https://k.l/m.png"]


def table(*headers: str) -> str:
    cells = "".join(f"<td>{number}</td>\n" for number, _ in enumerate(headers))
    heads = "".join(f"<th>{header}</th>\n" for header in headers)
    return f"<table>\n<thead>\n<tr>\n{heads}</tr>\n</thead>\n<tbody>\n<tr>\n{cells}</tr>\n</tbody>\n</table>"


def test_cells_of_wide_tables_of_fields_have_the_labels_of_their_columns():
    numbers, narrow = table("a", "b", "c", "d"), table("Field", "Description")
    fields = table("Field", "Type", "Default", "Meaning")
    found = site.with_labels(f"{numbers}{fields}{narrow}")
    assert found.startswith(numbers)
    assert found.endswith(narrow)
    labels = re.findall(r'<td data-label="(\w+)">(\d)</td>', found)
    assert labels == [("Field", "0"), ("Type", "1"), ("Default", "2"), ("Meaning", "3")]


def test_logs_have_a_class():
    text = "```log\na\n```\n\n```text\nb\n```\n"
    assert site.with_log_class(text) == text.replace("```log", "``` {.text .log}")


def test_a_diagram_is_a_picture_if_it_was_drawn(tmp_path, monkeypatch):
    monkeypatch.setattr(site, "ROOT", tmp_path)
    text = "a\n\n```mermaid\nflowchart TB\n```\n"
    assert site.with_diagrams(text, "developer/page.md") == text
    picture = tmp_path / "docs" / site.diagram_of("flowchart TB\n")
    picture.parent.mkdir(parents=True)
    picture.touch()
    assert site.with_diagrams(text, "developer/page.md") == f"a\n\n![Diagram](../images/{picture.name})\n"


def test_every_picture_belongs_to_a_page():
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    texts = "".join(page.read_text(encoding="utf-8") for page in pages)
    diagrams = {Path(site.diagram_of(source)).name for source in site.MERMAID.findall(texts)}
    pictures = {path.name for path in (ROOT / "docs" / "images").iterdir()}
    assert {name for name in pictures - diagrams if f"images/{name}" not in texts} == set()


def test_every_diagram_has_a_background():
    for picture in (ROOT / "docs" / "images").glob("diagram-*.svg"):
        assert "background-color: white" in picture.read_text(encoding="utf-8")[:1000], picture.name
    drawn = '<svg id="a" style="max-width: 9px;"><g style="b"/></svg>'
    assert on_white(drawn) == '<svg id="a" style="background-color: white; max-width: 9px;"><g style="b"/></svg>'


def test_a_picture_is_followed_by_its_dark_variant_if_that_exists(tmp_path, monkeypatch):
    monkeypatch.setattr(site, "ROOT", tmp_path)
    (tmp_path / "docs" / "images").mkdir(parents=True)
    text = "![A page](../images/page.png) and ![other](../images/other.png)"
    assert site.with_dark_pictures(text, "guide/a.md") == text
    (tmp_path / "docs" / "images" / "page-dark.png").touch()
    both = "![A page](../images/page.png#only-light)![A page](../images/page-dark.png#only-dark)"
    assert site.with_dark_pictures(text, "guide/a.md") == f"{both} and ![other](../images/other.png)"
    shown = f"{text} ![Dark](../images/page-dark.png)"
    assert site.with_dark_pictures(shown, "guide/a.md") == shown


def test_code_in_tables_has_no_escapes(tmp_path):
    cell = r'<td>a \| <code class="x">&lt;\|im_end\|&gt;</code></td>'
    outside = r"<p><code>a\|b</code></p>"
    assert site.without_escapes(cell + outside) == r'<td>a \| <code class="x">&lt;|im_end|&gt;</code></td>' + outside
    (tmp_path / "page.html").write_text(cell + outside)
    assert site.escaped_cells(tmp_path) == [rf'{tmp_path}/page.html: <code class="x">&lt;\|im_end\|&gt;</code>']

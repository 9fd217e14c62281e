"""Tests of the detection of long sentences. `test_baselines.py` compares the pages with the baselines."""

import pytest

from tests.layout import sentences
from tests.layout.pages import sentences as split
from tests.layout.pages import texts
from tests.layout.source import Text


def lengths(page: str) -> list[int]:
    return [len(sentence.text.split()) for text in texts(page) for sentence in split(text)]


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        ("One two. Three.", [2, 1]),
        ("One\ntwo three.\n\nFour.", [3, 1]),
        ("Is it? (Yes.) **No!** `code` ends", [2, 1, 1, 2]),
        ("Version 1.5 of e.g. This is one.", [7]),
        ("A file a.py, i.e. one word.", [6]),
        ("* one item\n  of four\n* two words\n1. three words here", [4, 2, 3]),
        ("> quoted\n> text here", [3]),
        ("`a b c` is one, and [three more words](a.md) too", [8]),
        ("# A heading\n\n| a | table |\n|---|---|\n\n```\nsome code. More.\n```\n<!-- a\ncomment -->", []),
        ("* [a link](a.md), [another](b.md)\n* [a link](a.md): with text", [4]),
    ],
)
def test_length_of_sentences(page, expected):
    assert lengths(page) == expected


def test_a_long_sentence_is_found_with_its_line_and_length():
    page = "Short.\n\n" + "word " * 35 + ".\n\nShort. And\n" + "word " * 35 + "end.\n"
    (finding,) = sentences.findings_in("docs/guide/limits.md", page.replace(" .", "."))
    assert (finding.key, finding.line) == ("docs/guide/limits.md", 5)
    assert finding.detail.startswith("37 words: And word word")


def test_records_of_measurements_are_not_checked():
    checked = sentences.checked_pages()
    assert {"README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/guide/limits.md", "e2e/README.md"} <= set(checked)
    assert not any("benchmarks" in page for page in checked)


def test_a_paragraph_has_the_number_of_its_first_line():
    assert list(texts("# Title\n\nOne\ntwo.\n")) == [Text(3, "One\ntwo.")]

"""Test that every Hub repository in the pages is one that the project has facts of."""

import re
from pathlib import Path

from runtime.models.published import repositories

ROOT = Path(__file__).parents[1]
PLACEHOLDERS = {"org/name", "ORG/NAME", "me/chess-lora", "my-org/chess-lora", "my-org/my-diffusion-model"}


def test_every_repository_of_the_pages_is_listed() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "charts").glob("**/*.yaml")]
    pages += [*(ROOT / "examples").rglob("*.yaml"), *(ROOT / "examples").rglob("*.md")]
    texts = [page.read_text(encoding="utf-8") for page in pages]
    named = {name for text in texts for name in re.findall(r"hf://([\w.-]+/[\w.-]*\w)", text)}
    assert len(named) > 10
    assert sorted(named - PLACEHOLDERS - {each.name for each in repositories()}) == []

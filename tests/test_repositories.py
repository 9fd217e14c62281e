"""Test that docs/models/verification.md lists every Hub repository in the pages, and whether it was checked."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PLACEHOLDERS = {"org/name", "ORG/NAME", "me/chess-lora", "my-org/chess-lora", "my-org/my-diffusion-model"}


def test_every_repository_of_the_pages_is_in_the_table() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "charts").glob("**/*.yaml")]
    pages += [*(ROOT / "examples").rglob("*.yaml"), *(ROOT / "examples").rglob("*.md")]
    texts = [page.read_text(encoding="utf-8") for page in pages]
    named = {name for text in texts for name in re.findall(r"hf://([\w.-]+/[\w.-]*\w)", text)}
    assert len(named) > 10
    page = (ROOT / "docs/models/verification.md").read_text(encoding="utf-8")
    table = page.split("## Which repositories were checked")[1].split("\n## ")[0]
    assert sorted(name for name in named - PLACEHOLDERS if f"`{name}`" not in table) == []

"""Tests that modules which need compiled programs or an API server have a marker, so that `make test` skips them."""

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
# Matches modules that run helm or use an API server of tests/operator/conftest.py, by their imports and fixtures.
NEEDS_PROGRAMS = re.compile(
    r"^from tests\.operator\.helm import|\bstart_api_server\("
    r"|^(?:async )?def test_\w+\([^)]*\b(?:controlled_)?(?:admin|api_server|namespace)\b",
    re.MULTILINE,
)
MARKER = re.compile(r"^pytestmark = .*?pytest\.mark\.(?:cluster|programs)\b", re.MULTILINE | re.DOTALL)


def test_modules_that_need_programs_are_marked():
    unmarked = []
    for path in TESTS.rglob("test_*.py"):
        text = path.read_text(encoding="utf-8")
        if NEEDS_PROGRAMS.search(text) and not MARKER.search(text):
            unmarked.append(path.name)
    assert unmarked == [], "add pytestmark = pytest.mark.cluster (API server) or pytest.mark.programs (helm)"

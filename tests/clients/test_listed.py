"""Tests of clients that need no environment: their locks, and the list of clients in the documentation."""

import json
import re
from pathlib import Path

import pytest

from tests.clients.catalogue import Client, clients, table, with_table

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("client", clients(), ids=lambda client: client.name)
def test_a_lock_has_names_versions_and_hashes_and_no_host(client: Client) -> None:
    text = client.lock.read_text(encoding="utf-8")
    assert "://" not in text
    assert client.version
    if client.language == "python":
        packages = re.findall(r"^\S.*(?:\n .*)*", text, re.MULTILINE)
        assert packages
        assert all("==" in package and "--hash=sha256:" in package for package in packages)
    elif client.language == "node":
        packages = json.loads(text)["packages"]
        assert all("resolved" not in package for package in packages.values())
        assert all("integrity" in package for name, package in packages.items() if name)
    else:
        assert all(" h1:" in line for line in text.splitlines())


def test_the_page_lists_all_clients() -> None:
    page = (ROOT / "docs/guide/clients.md").read_text(encoding="utf-8")
    assert table() in page, "the list of clients is out of date; run python -m tests.clients table"
    assert with_table(page) == page

"""Test of reading the API server's audit log while it is written."""

import json
from pathlib import Path

from e2e.cluster.audit import read_events


def test_only_complete_lines_after_an_offset_are_read(tmp_path: Path) -> None:
    log = tmp_path / "audit.log"
    lines = [json.dumps({"user": {"username": name}}) + "\n" for name in ("one", "two", "one")]
    log.write_text("".join(lines) + '{"user": {"userna')

    def read(user: str = "", after: int = 0) -> list[str]:
        return [event["user"]["username"] for event in read_events(log, user, after)]

    ends = len(lines[0]), len(lines[0] + lines[1])
    assert read() == ["one", "two", "one"]
    assert read("one") == ["one", "one"]
    assert read(after=ends[0]) == ["two", "one"]
    for middle in (1, len(lines[1]) - 1):  # of the second line
        assert read(after=ends[0] + middle) == ["one"]
    assert read(after=ends[1]) == ["one"]

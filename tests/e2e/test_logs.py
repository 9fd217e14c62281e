"""Tests of the logs in the report of a failed cluster test."""

from pathlib import Path
from typing import Any

import pytest

from e2e import logs
from e2e.cluster import ApiError


class OnePod:
    """Fake client of a cluster with one pod of the operator, which did not restart."""

    def __init__(self, answer: dict[str, Any]) -> None:
        self.answer = answer

    def list(self, *_: Any, **__: Any) -> list[dict[str, Any]]:
        return [{"metadata": {"name": "operator"}}]

    def path(self, *where: str) -> str:
        return "/".join(where)

    def request(self, method: str, path: str, **query: Any) -> dict[str, Any]:
        if "previous" in query:
            raise ApiError(400, "BadRequest", "previous terminated container not found")
        return self.answer


@pytest.mark.parametrize(
    ("answer", "text"),
    [({"text": "a\nb"}, "a\nb"), ({"level": "info", "message": "leading"}, "{'level': 'info', 'message': 'leading'}")],
    ids=["text", "one line of JSON"],
)
def test_the_logs_are_errors_of_the_api_server_and_logs_of_the_operator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: dict[str, Any], text: str
) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "kube-apiserver.log").write_bytes(b"I1128 started\nE1128 broken \xff\npanic: x\nW1128 slow\n")
    monkeypatch.setattr(logs, "audit_log", lambda: tmp_path / "audit.log")
    found = list(logs.collect(OnePod(answer)))  # type: ignore[arg-type]
    assert found == [("errors of the API server", "E1128 broken \ufffd\npanic: x"), ("log of operator", text)]

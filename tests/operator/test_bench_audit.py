"""Tests of the reader of the audit log in the benchmark of the operator."""

import json
from datetime import UTC, datetime
from pathlib import Path

from tools.bench.operator.audit import AuditLog, tally

ME = "system:serviceaccount:unmask-system:unmask-operator"
START = datetime(2030, 1, 1, tzinfo=UTC).timestamp()


def _line(number: int, verb: str, resource: str, *, user: str = ME, code: int | None = 200, query: str = "") -> str:
    """Returns the audit event of a request `number` seconds after START. Without a code the request is running."""
    resource, _, subresource = resource.partition("/")
    event = {
        "auditID": f"id-{number}",
        "verb": verb,
        "user": {"username": user},
        "requestURI": f"/somewhere{query}",
        "requestReceivedTimestamp": f"2030-01-01T00:00:{number:02}.000000Z",
        "objectRef": {"resource": resource, "subresource": subresource, "namespace": "a", "name": "b"},
    }
    return json.dumps(event | ({"responseStatus": {"code": code}} if code else {})) + "\n"


def test_requests_of_one_user_are_counted_once_and_dry_runs_separately(tmp_path: Path) -> None:
    path, last = tmp_path / "audit.log", _line(5, "patch", "diffusionlmservices/status", code=409)
    path.write_text(
        _line(1, "create", "services", query="?dryRun=All")
        + _line(2, "create", "services", code=201)
        + _line(3, "patch", "diffusionlmservices/status", user="somebody")
        + _line(4, "watch", "pods", code=None)
        + _line(4, "watch", "pods")  # the watch has ended
        + last[:20]
    )
    log = AuditLog(path, ME)
    assert [r.status for r in log.between(START)] == [200, 201, 200]
    with open(path, "a") as file:
        file.write(last[20:])  # the line is complete now
    requests = log.between(START)
    written = {"create services": 1, "patch diffusionlmservices/status": 1}
    assert tally(requests) == {"create services (dry run)": 1, "watch pods": 1, **written}
    assert tally(r for r in requests if r.writes) == written
    assert tally(log.between(START + 2, START + 5)) == {"create services": 1, "watch pods": 1}

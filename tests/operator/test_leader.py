"""How soon news leads to a reconcile."""

import pytest

from unmask_operator.kinds import CHILDREN, PODS, SERVICES
from unmask_operator.leader import SETTLE_READY_SECONDS, SETTLE_SECONDS, settle_seconds


def _pod(ready: str) -> dict:
    return {"status": {"conditions": [{"type": "Ready", "status": ready}]}}


@pytest.mark.parametrize(
    ("kind", "obj", "seconds"),
    [
        (SERVICES, {}, 0.0),
        (PODS, {}, SETTLE_SECONDS),
        (PODS, _pod("False"), SETTLE_SECONDS),
        (PODS, _pod("True"), SETTLE_READY_SECONDS),
        *((kind, {}, SETTLE_SECONDS) for kind in CHILDREN),
    ],
)
def test_an_edit_is_carried_out_at_once_and_a_burst_of_changes_is_waited_for(kind, obj, seconds):
    assert settle_seconds(kind, obj) == seconds

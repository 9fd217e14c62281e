"""Tests of kstatus with a real operator, for resources that are stopped, rejected, or corrected after a rejection."""

from __future__ import annotations

import pytest

from tests.operator.kstatus import FAILED, IN_PROGRESS, kstatus
from tests.operator.live.objects import condition, demo, read

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("shared_operator")]


def wait_for(admin, resource, state, reason=""):
    def there():
        stalled = condition(admin, resource, "Stalled")
        return kstatus(read(admin, resource)) == state and stalled.get("reason", "") == reason

    admin.wait(f"{state}, {reason}", there)


@pytest.mark.parametrize(("spec", "reason"), [({"suspend": True}, "Suspended"), ({"replicas": 0}, "NoReplicas")])
def test_a_service_that_is_stopped_on_purpose_ends_the_wait(admin, namespace, spec, reason):
    resource = admin.create(demo(namespace, **spec))
    wait_for(admin, resource, FAILED, reason)
    admin.patch(resource, {"spec": {"suspend": False, "replicas": 1}})
    wait_for(admin, resource, IN_PROGRESS)


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        ({"engine": {"extraArgs": ["--no-such-flag=1"]}}, "InvalidSpec"),
        ({"podTemplate": {"spec": {"containers": [{"name": "side"}]}}}, "Refused"),
    ],
)
def test_an_edit_that_is_not_accepted_ends_the_wait_and_its_correction_begins_another(admin, namespace, edit, reason):
    resource = admin.create(demo(namespace))
    wait_for(admin, resource, IN_PROGRESS)
    admin.patch(resource, {"spec": edit})
    wait_for(admin, resource, FAILED, reason)
    admin.patch(resource, {"spec": dict.fromkeys(edit)})
    wait_for(admin, resource, IN_PROGRESS)

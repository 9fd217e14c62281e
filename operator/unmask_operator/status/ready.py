"""Ready: all that serving needs. It carries the reason of the first condition that does not hold."""

from __future__ import annotations

from collections.abc import Mapping

from unmask_operator.status.verdict import Verdict, yes

# ScalingReady, UpToDate and Protected are left out: they tell of work to do while requests are served as the spec says.
NEEDED = ("Accepted", "Scheduled", "ModelLoaded", "RolloutComplete", "Available")


def verdict(others: Mapping[str, Verdict], suspended: bool) -> Verdict:
    if suspended and others["Accepted"].status == "True":
        return Verdict("False", "Suspended", "spec.suspend is true: no engine runs; set it to false to serve again")
    for condition in NEEDED:
        found = others.get(condition)
        if found and found.status != "True":
            return Verdict("False", found.reason, found.message)
    return yes("Ready", "the service takes requests")

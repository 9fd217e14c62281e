"""Adopts objects: adds the owner reference of the resource."""

import logging
from dataclasses import replace

from unmask_operator.kinds import kind_of
from unmask_operator.kube.cache import Cache
from unmask_operator.kube.client import Client
from unmask_operator.kube.errors import ApiError
from unmask_operator.objects import Key, Obj, Ref
from unmask_operator.plan.adoption import orphans, owner_reference
from unmask_operator.plan.observed import Observed
from unmask_operator.status.transitions import Event

ADOPTED = "Adopted"  # an Event's reason

log = logging.getLogger(__name__)


async def adopt(client: Client, cache: Cache, observed: Observed) -> tuple[Observed, list[Ref]]:
    """Adopts orphaned children if the resource's annotation requests it.

    Returns:
        The observed state after it, and the adopted objects. An object that changed in the meantime, or whose write
        was refused, is not among them. The next reconcile tries again.

    Raises:
        ApiError: the API server as a whole does not answer.
    """
    adopted: dict[Ref, Obj] = {}
    failed: dict[Ref, str] = {}
    for child in orphans(observed):
        ref = Ref.of(child)
        try:
            adopted[ref] = await _own(client, child, owner_reference(observed.name, observed.uid))
        except ApiError as error:
            if error.general:
                raise
            log.warning("cannot adopt %s %s: %s", ref.kind, ref.name, error, extra={"service": observed.key})
            if not (error.not_found or error.conflict):
                failed[ref] = error.message
            continue
        cache.put(kind_of(ref.api_version, ref.kind), adopted[ref])
    observed = replace(observed, children={**observed.children, **adopted}, not_adopted=failed)
    return observed, list(adopted)


async def _own(client: Client, child: Obj, owner: Obj) -> Obj:
    """Adds the owner reference. The uid and the resource version of the read are preconditions."""
    kind, meta = kind_of(child["apiVersion"], child["kind"]), child["metadata"]
    same = {member: meta[member] for member in ("uid", "resourceVersion")}
    body = {"metadata": {**same, "ownerReferences": [*meta.get("ownerReferences", ()), owner]}}
    return await client.merge(kind.path(*Key.of(child)), body)


def event(adopted: list[Ref]) -> Event:
    """Returns the Event of an adoption."""
    named = ", ".join(f"{ref.kind} {ref.name}" for ref in adopted)
    return Event("Normal", ADOPTED, f"adopted: {named}")

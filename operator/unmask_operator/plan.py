"""What a resource's children should be: a pure function of what is known."""

from __future__ import annotations

from dataclasses import dataclass

from unmask_operator.objects import Obj, Ref


@dataclass(frozen=True)
class Problem:
    """Why something of the spec cannot be had: becomes a condition's reason and message.

    Attributes:
        condition: "Accepted" (nothing new is applied while it stands) or the condition it falls under.
        reason: CamelCase, as conditions have it.
        message: a sentence that names the field and the fix.
    """

    condition: str
    reason: str
    message: str


@dataclass(frozen=True)
class Plan:
    """What to do next.

    Attributes:
        children: complete objects, in the order of their creation, each controlled by the resource.
        delete: our own objects that nothing wants any more.
        problems: what stands in the way, in the order of importance.
        replicas: the engine replicas asked for now (0 while suspended), clamped to the autoscaler's bounds.
        up_to_date: False when this operator would render another pod template than the pinned one.
        requeue_seconds: look again after so long although nothing may change (None: not needed).
    """

    children: tuple[Obj, ...] = ()
    delete: tuple[Ref, ...] = ()
    problems: tuple[Problem, ...] = ()
    replicas: int = 1
    up_to_date: bool = True
    requeue_seconds: float | None = None

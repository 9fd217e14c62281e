"""JSON merge patches (RFC 7386)."""

from unmask_operator.objects import Obj


def merge_patch(old: Obj, new: Obj) -> Obj:
    """Returns the patch that changes `old` to `new`; {} if they are equal."""
    patch: Obj = {member: None for member in old if member not in new}
    for member, value in new.items():
        before = old.get(member)
        if isinstance(value, dict) and isinstance(before, dict):
            inner = merge_patch(before, value)
            if inner:
                patch[member] = inner
        elif value != before or member not in old:
            patch[member] = value
    return patch

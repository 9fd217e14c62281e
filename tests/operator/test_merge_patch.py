"""Tests that a computed merge patch converts the old object to the new one."""

from hypothesis import given
from hypothesis import strategies as st

from unmask_operator.objects import merge_patch

KEYS = st.sampled_from("abc")
VALUES = st.recursive(st.integers(0, 2) | st.lists(st.integers(0, 2), max_size=2), lambda v: st.dictionaries(KEYS, v))
OBJECTS = st.dictionaries(KEYS, VALUES)


def apply(target, patch):
    """Applies a merge patch as RFC 7386 specifies."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = apply(result.get(key), value)
    return result


@given(OBJECTS, OBJECTS)
def test_the_patch_converts_the_old_object_to_the_new(old, new):
    assert apply(old, merge_patch(old, new)) == new
    assert merge_patch(new, new) == {}

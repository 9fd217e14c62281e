"""Every family's tiny model over both layouts of the pool."""

from contextlib import suppress

import pytest
import torch

from runtime.errors import ConfigError
from runtime.models import resolve_family
from runtime.models.base import _FAMILIES
from runtime.weights import resolve_checkpoint
from tests.models.tiny import EVERY, checkpoint_of, tiny_logits
from tests.oracle.spelling import KINDS


@pytest.mark.parametrize("key", EVERY)
def test_layouts_give_the_same_logits(tmp_path, key):
    path = checkpoint_of(key, tmp_path)
    unified, distinct = (tiny_logits(key, path, torch.float64, layout=name) for name in ("unified", "distinct"))
    for one, other in zip(unified, distinct, strict=True):
        assert torch.isfinite(one).all()
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def family_of(key, directory):
    name = key if key in KINDS and KINDS[key].named else None
    return resolve_family(name, resolve_checkpoint(str(checkpoint_of(key, directory))).config).key


@pytest.mark.parametrize("key", EVERY)
def test_a_checkpoint_is_recognised(tmp_path, key):
    assert family_of(key, tmp_path) in {family.key for family in _FAMILIES.values()}


def test_no_family_is_left_out(tmp_path):
    found = set()
    for key in EVERY:
        with suppress(ConfigError):  # of a family that is not there: the test above
            found.add(family_of(key, tmp_path / key))
    assert found == {family.key for family in _FAMILIES.values()}

"""Two ranks read a quantised checkpoint as one process does: each keeps its share of the very numbers."""

import pytest
import torch

from runtime import LLM
from runtime.errors import ConfigError
from tests.adapters.samples import random_adapter
from tests.oracle.tiny import write_tiny
from tests.ranks.cases import logits
from tests.ranks.test_adapters import LAYER
from tests.weights.quantised_files import LAYOUTS, write_both

CASES = [(layout, 1) for layout in LAYOUTS] + [("int4, groups of 32", 2), ("fp8, blocks", 2)]
ROUNDED = 0.2  # where rows are rounded as well, which each rank does by its own share of one


def flags(path):
    return {"model": str(path), "device": "cpu", "dtype": "float32", "skip_tokenizer": True}


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """Halves of whose widths groups and blocks of 128 divide."""
    path = tmp_path_factory.mktemp("plain")
    sizes = {
        "hidden_size": 256,
        "moe_intermediate_size": 256,
        "intermediate_size": 512,
        "head_dim": 64,
    }
    write_tiny(path, seed=9, vocab=64, num_experts=4, **sizes)
    return path


@pytest.mark.parametrize(("layout", "experts"), CASES)
def test_each_layout(pair, plain, tmp_path, layout, experts):
    kept, _ = write_both(layout, plain, tmp_path)
    ours = logits(flags(kept), tensor_parallel_size=2, expert_parallel_size=experts)
    expected = logits(flags(kept))
    most = ROUNDED if "fp8" in layout else 1e-5
    assert float((ours - expected).norm() / expected.norm()) < most


def test_a_share_that_cuts_a_group_is_refused(tmp_path):
    sizes = {"hidden_size": 128, "moe_intermediate_size": 128, "intermediate_size": 256, "head_dim": 64}
    write_tiny(tmp_path / "narrow", seed=9, vocab=64, num_experts=4, **sizes)
    kept, _ = write_both("int4, groups of 128", tmp_path / "narrow", tmp_path)
    says = r"is cut at inputs (0 and 64|64 and 128), but each 128 of them share a scale; give a --tensor"
    with pytest.raises(ConfigError, match=says):
        logits(flags(kept), tensor_parallel_size=2)


def test_with_adapters(pair, plain, tmp_path):
    kept, _ = write_both("int4, groups of 32", plain, tmp_path)
    adapter = random_adapter(tmp_path / "a", plain, rf"{LAYER}.*(proj|query_key_value|dense)", 5)
    found = []
    for more in ({"tensor_parallel_size": 2}, {}):
        with LLM(**flags(kept), lora={"a": str(adapter)}, **more) as llm:
            found.append([llm.logits([5, 6, 7, 3, 9, 12, 8] * 3, adapter=name) for name in ("a", None)])
    ours, expected = (torch.stack(each) for each in found)
    assert float((ours - expected).norm() / expected.norm()) < 1e-5
    assert not torch.allclose(*expected)

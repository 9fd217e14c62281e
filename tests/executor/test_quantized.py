"""Tests of quantized checkpoints with two ranks: each rank loads its shard of the unchanged codes."""

import json
import re

import pytest
import torch

from runtime import LLM
from runtime.errors import ConfigError
from runtime.kernels.ops import select_kernels
from runtime.parameters.sharding import Shard
from runtime.quantization.base import get_format
from tests.executor.cases import logits
from tests.executor.test_adapters import LAYER
from tests.lora.samples import random_adapter
from tests.matrix import marked
from tests.oracle.tiny import write_tiny
from tests.quantization.quantized_files import LAYOUTS, write_both

CASES = [(layout, 1) for layout in LAYOUTS] + [("int4, groups of 32", 2), ("nvfp4, compressed", 2), ("fp8, blocks", 2)]
QUICK = [*CASES[-1:], ("nvfp4, modelopt", 1), ("AWQ", 1)]
ROUNDED = 0.2  # for fp8, where each rank quantizes its own shard of the activations


def flags(path):
    return {"model": str(path), "device": "cpu", "dtype": "float32", "skip_tokenizer": True}


@pytest.fixture(scope="module")
def unquantized(tmp_path_factory):
    """Returns a checkpoint whose widths, halved, are multiples of the group and block size 128."""
    path = tmp_path_factory.mktemp("plain")
    sizes = {
        "hidden_size": 256,
        "moe_intermediate_size": 256,
        "intermediate_size": 512,
        "head_dim": 64,
    }
    write_tiny(path, seed=9, vocab=64, num_experts=4, **sizes)
    return path


@pytest.mark.parametrize(("layout", "experts"), marked(CASES, quick=QUICK))
def test_each_layout(pair, unquantized, tmp_path, layout, experts):
    quantized, _ = write_both(layout, unquantized, tmp_path)
    ours = logits(flags(quantized), tensor_parallel_size=2, expert_parallel_size=experts)
    expected = logits(flags(quantized))
    tolerance = ROUNDED if "fp8" in layout else 1e-5
    assert float((ours - expected).norm() / expected.norm()) < tolerance


MIXED = [
    (unquantized, layout, experts)
    for unquantized in (r".*mlp\.experts\..*", r".*down_proj.*", r".*(attention|layers\.0\.mlp|shared_experts).*")
    for layout, experts in (("int4, groups of 32", 1), ("fp8, blocks", 2))
]


@pytest.mark.parametrize(("is_unquantized", "layout", "experts"), marked(MIXED, quick=MIXED[:1] + MIXED[-1:]))
def test_unquantized_weights(pair, unquantized, tmp_path, is_unquantized, layout, experts):
    """Each rank has its shard of the weights that the checkpoint leaves unquantized."""
    quantized, _ = write_both(layout, unquantized, tmp_path, lambda name: re.fullmatch(is_unquantized, name))
    ours = logits(flags(quantized), tensor_parallel_size=2, expert_parallel_size=experts)
    expected = logits(flags(quantized))
    assert float((ours - expected).norm() / expected.norm()) < 1e-5


@pytest.mark.parametrize("dim", [-3, -2, -1])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(
    "format", ["fp8", "fp8_blocks", "int8", "int4", "nvfp4", "int4_64_asymmetric", "int8_128_asymmetric"]
)
def test_shards_have_the_unchanged_codes(format, interleaved, dim):
    """Checks the shards of two experts, also where a shard boundary is inside a block of 128 rows."""
    shape, device = (2, 384, 512), torch.device("cpu")
    kernels = select_kernels(device, torch.float32, format)

    def made(shape, shard=None):
        return get_format(format).make(shape, torch.float32, device, kernels, interleaved).with_shard(shard)

    full, length = made(shape), shape[dim] // (2 if interleaved and dim == -2 else 1)
    numbers = torch.randn(shape, generator=torch.Generator().manual_seed(1)) * torch.rand(2, 384, 1)
    shards = [get_format(format).make(shape[1:], torch.float32, device, kernels, False) for _ in range(2)]
    for expert, weight in enumerate(shards):
        weight.load((), numbers[expert])
        full.load_quantized((expert,), weight.kernel_arg)
    for rank in range(2):
        mine = range(rank * length // 2, (rank + 1) * length // 2)
        runs = tuple(range(mine.start + first, mine.stop + first) for first in range(0, shape[dim], length))
        shard = Shard(dim, shape[dim], runs)
        quantized = made(shard.local_shape(shape), shard)
        taken = sum(quantized.load_quantized((expert,), weight.kernel_arg) for expert, weight in enumerate(shards))
        assert taken == quantized.size
        at = torch.cat([torch.arange(run.start, run.stop) for run in runs])
        assert torch.equal(quantized.tensor, full.tensor.index_select(dim, at))


@pytest.mark.parametrize(
    ("layout", "is_unquantized", "width", "says"),
    [
        ("int4, groups of 128", "", 256,
         r"is cut at inputs (0 and 64|64 and 128), but each 128 of them share a scale; give a --tensor"),
        # another number of ranks would not help, so that is the cause even where a group is cut too
        ("GPTQ, activation order", r".*(experts|attention).*", 224,
         r"are in activation order \(g_idx is not sorted\); set --tensor-parallel-size to 1"),
    ],
)  # fmt: skip
def test_a_shard_that_cuts_a_group_is_refused(tmp_path, layout, is_unquantized, width, says):
    sizes = {"hidden_size": 128, "moe_intermediate_size": 128, "intermediate_size": width, "head_dim": 64}
    write_tiny(tmp_path / "narrow", seed=9, vocab=64, num_experts=4, **sizes)
    quantized, _ = write_both(layout, tmp_path / "narrow", tmp_path, lambda name: re.fullmatch(is_unquantized, name))
    config = json.loads((quantized / "config.json").read_text())
    config["quantization_config"]["static_groups"] = True  # so that config.json does not rule out two ranks
    (quantized / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=says):
        logits(flags(quantized), tensor_parallel_size=2)


@pytest.mark.matrix
@pytest.mark.parametrize("layout", ["int4, groups of 32", "nvfp4, modelopt"])
def test_with_adapters(pair, unquantized, tmp_path, layout):
    quantized, _ = write_both(layout, unquantized, tmp_path)
    adapter = random_adapter(tmp_path / "a", unquantized, rf"{LAYER}.*(proj|query_key_value|dense)", 5)
    found = []
    for more in ({"tensor_parallel_size": 2}, {}):
        with LLM(**flags(quantized), lora={"a": str(adapter)}, **more) as llm:
            found.append([llm.logits([5, 6, 7, 3, 9, 12, 8] * 3, adapter=name) for name in ("a", None)])
    ours, expected = (torch.stack(each) for each in found)
    assert float((ours - expected).norm() / expected.norm()) < 1e-5
    assert not torch.allclose(*expected)

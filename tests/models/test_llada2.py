"""Tests of LLaDA2 against golden logits and, with random architectures, against the float64 oracle."""

import pytest
import torch
from safetensors.torch import load_file

from runtime.models.decoder import first_rows
from tests.golden import GOLDEN
from tests.models.paged import load, logits_in_chunks
from tests.oracle.model import OracleModel
from tests.oracle.tiny import ARCHITECTURES, write_tiny


@pytest.fixture(scope="module")
def golden():
    path = GOLDEN / "llada2_tiny"
    expected = load_file(path / "expected.safetensors")
    return path, expected["input_ids"][0].tolist(), expected["logits"][0]


@pytest.mark.parametrize(
    ("dtype", "page_size", "chunk_blocks"), [(torch.float32, 4, 1), (torch.float32, 32, 4), (torch.float64, 16, 3)]
)
def test_golden_logits(golden, dtype, page_size, chunk_blocks):
    path, ids, expected = golden
    model = load(path, dtype)
    (logits,) = logits_in_chunks(
        model, [ids], block_size=8, page_size=page_size, chunk_blocks=[chunk_blocks], dtype=dtype
    )
    assert logits.dtype == dtype
    torch.testing.assert_close(logits.float(), expected, rtol=1e-4, atol=2e-5)


def check_logits(path, oracle, seed):
    """Compares sequences of several lengths with the oracle, in pages and chunks of several sizes. Returns them."""
    model, random = load(path, torch.float64), torch.Generator().manual_seed(seed)
    sequences = [torch.randint(0, 32, (n,), generator=random).tolist() for n in (1, 7, 12, 31, 50)]
    for page_size, chunks in ((2, [1, 1, 2, 3, 5]), (16, [9, 9, 9, 9, 9])):
        results = logits_in_chunks(
            model, sequences, block_size=4, page_size=page_size, chunk_blocks=chunks, seed=1, dtype=torch.float64
        )
        for ids, logits in zip(sequences, results, strict=True):
            torch.testing.assert_close(logits, oracle.logits(ids), rtol=1e-9, atol=1e-9)
    return sequences


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("biased", [False, True])
def test_random_architectures_equal_the_oracle(tmp_path, name, biased):
    changes = ARCHITECTURES[name] | {"use_bias": biased, "use_qkv_bias": biased}
    write_tiny(tmp_path, seed=len(name), **changes)
    check_logits(tmp_path, OracleModel.load(tmp_path, block=4), seed=3)


@pytest.mark.parametrize("changes", [{}, {"num_experts": 7, "expert_capacity": 4, "num_experts_per_tok": 3}])
def test_the_pool_of_experts_of_llada2dot2_equals_the_oracle(tmp_path, changes):
    """LLaDA2.2: chunks of complete blocks, several sequences in one forward, and incomplete last blocks."""
    settings = {"first_k_dense_replace": 0, "expert_capacity": 3, "n_group": 1, "topk_group": 1, **changes}
    write_tiny(tmp_path, seed=8, **settings)
    oracle = OracleModel.load(tmp_path)
    sequences = check_logits(tmp_path, oracle, seed=4)
    (settings.pop("expert_capacity"), write_tiny(tmp_path, seed=8, **settings))
    free = logits_in_chunks(load(tmp_path, torch.float64), sequences[4:], block_size=4, page_size=4, chunk_blocks=[9],
                            dtype=torch.float64)  # fmt: skip
    assert not torch.allclose(free[0], oracle.logits(sequences[4]), rtol=1e-3), "the expert pool excluded no expert"


def test_the_first_row_of_each_rows_block():
    positions = torch.tensor([0, 1, 2, 3, 4, 5, 8, 9, 4, 5, 6, 0, 0])
    slots = torch.tensor([0] * 11 + [-1, -1])
    assert first_rows(positions, slots, 4).tolist() == [0, 0, 0, 0, 4, 4, 6, 6, 8, 8, 8, 11, 12]
    slots = torch.tensor([0] * 9 + [-1] * 4)
    assert first_rows(positions, slots, 4).tolist()[8:] == [8, 9, 10, 11, 12], "padding rows belong to a block"


def test_rows_do_not_depend_on_the_batch(tmp_path):
    write_tiny(tmp_path, seed=5)
    model = load(tmp_path, torch.float64)
    random = torch.Generator().manual_seed(9)
    sequences = [torch.randint(0, 32, (n,), generator=random).tolist() for n in (40, 8, 23, 40, 3, 17)]
    together = logits_in_chunks(model, sequences, block_size=4, page_size=8, chunk_blocks=[2] * 6, dtype=torch.float64)
    for ids, logits in zip(sequences, together, strict=True):
        (alone,) = logits_in_chunks(model, [ids], block_size=4, page_size=4, chunk_blocks=[99], dtype=torch.float64)
        torch.testing.assert_close(logits, alone, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_keeps_the_logits_in_float32(golden, dtype):
    path, ids, expected = golden
    (logits,) = logits_in_chunks(load(path, dtype), [ids], block_size=8, page_size=8, chunk_blocks=[9], dtype=dtype)
    assert logits.dtype == torch.float32
    assert (logits - expected).norm() / expected.norm() < (0.1 if dtype == torch.bfloat16 else 0.01)
    assert (logits != logits.to(dtype).float()).any(), "the logits were rounded to the model's dtype"


def test_rotary_reaches_past_the_checkpoints_limit_to_the_blocks_end(tmp_path):
    write_tiny(tmp_path, seed=2, max_position_embeddings=510)
    model, oracle = load(tmp_path, torch.float64), OracleModel.load(tmp_path, block=4)
    ids = torch.randint(0, 32, (516,), generator=torch.Generator().manual_seed(0)).tolist()
    (logits,) = logits_in_chunks(model, [ids], block_size=4, page_size=4, chunk_blocks=[50], dtype=torch.float64)
    torch.testing.assert_close(logits, oracle.logits(ids), rtol=1e-9, atol=1e-9)

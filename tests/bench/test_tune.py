"""The tables of tuned tiles: written, read, chosen from; and what is tuned for."""

import pytest
import torch

from runtime.bench.__main__ import main
from runtime.bench.tune import between, choices, masks, shape_of
from runtime.errors import ConfigError
from runtime.kernels.fused_moe import tile_config
from runtime.kernels.fused_moe.tile_config import (
    FusedMoEConfig,
    GemmConfig,
    default_config,
    get_config,
    load_table,
    shape_key,
    write_table,
)

CUTS = [
    FusedMoEConfig(128, GemmConfig(32, 64, (5, 4, n), 4), GemmConfig(128, 64, (3, 3, 3), 8, swap_ab=False))
    for n in (1, 2, 3)
]


def test_a_table_is_written_and_chosen_from(tmp_path, monkeypatch):
    monkeypatch.setattr(tile_config, "TABLES", tmp_path / "tuned")
    name = shape_key(256, 2048, 512)
    write_table(tile_config.table_path("Some GPU"), {name: between([(1, CUTS[0]), (4, CUTS[1]), (256, CUTS[2])])})
    load_table.cache_clear()
    assert load_table("Some GPU") == {name: [(2, CUTS[0]), (32, CUTS[1]), (1e9, CUTS[2])]}
    for each, chosen in ((1, 0), (2, 0), (3, 1), (33, 2), (10**6, 2)):
        assert get_config(each * 256, 256, 2, 2048, 512, "Some GPU") == CUTS[chosen]
    for other in ((256, 256, 4, 2048, 512, "Some GPU"), (256, 256, 2, 2048, 256, "Some GPU"), (256, 256, 2, 2048, 512)):
        assert get_config(*other) == default_config(1, *other[2:5])
    load_table.cache_clear()


@pytest.mark.parametrize("path", sorted(tile_config.TABLES.glob("*.json")), ids=lambda path: path.stem)
def test_shipped_tables_are_complete(path):
    table = load_table(path.stem.replace("_", " "))
    assert table
    for rows in table.values():
        assert [limit for limit, _ in rows] == sorted({limit for limit, _ in rows})
        assert rows[-1][0] == 1e9


def test_shapes_are_as_the_kernels_see_them():
    assert shape_of("llada2-mini") == (257, 2048, 512, 9), "the shared expert is one of them"


def test_ranks_have_a_part_of_the_width():
    assert shape_of("llada2-mini", 2) == (257, 2048, 256, 9)
    with pytest.raises(ConfigError, match="--tensor-parallel-size 3 does not divide the experts' width, 512"):
        shape_of("llada2-mini", 3)


def test_the_shape_of_sdar_moe():
    assert shape_of("sdar-30b-a3b")[0] == 128


def test_the_shape_of_diffusion_gemma():
    assert shape_of("diffusiongemma-26b-a4b")[3] > 1


@pytest.mark.parametrize(("arch", "masked"), [("llada2-mini", True), ("diffusiongemma-26b-a4b", False)])
def test_rows_are_masked_where_the_family_denoises_masks(arch, masked):
    assert masks(arch) is masked


def test_llada_has_no_experts():
    with pytest.raises(ConfigError, match="--arch llada-8b has no experts"):
        shape_of("llada-8b")


def test_choices_are_distinct_and_masked_rows_agree():
    ids = choices(64, 100, 8, torch.device("cpu"))
    assert all(len(set(row)) == 8 for row in ids.tolist())
    masked, others = ids.view(2, 2, 16, 8)[:, 0].unique(), ids.view(2, 2, 16, 8)[:, 1].unique()
    assert 2 * len(masked) < len(others)


def test_choices_of_noise_spread_in_all_rows():
    ids = choices(64, 100, 8, torch.device("cpu"), half_masked=False)
    masked, others = ids.view(2, 2, 16, 8)[:, 0].unique(), ids.view(2, 2, 16, 8)[:, 1].unique()
    assert 2 * len(masked) > len(others)


def test_without_a_gpu_it_says_so(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["tune"]) == 1
    assert capsys.readouterr().out.startswith("error: tune: no GPU is usable: ")

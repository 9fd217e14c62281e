"""Tests of the tables of tuned tiles, and of the shapes and routings that are tuned."""

import argparse
from types import SimpleNamespace

import pytest
import torch

from runtime.bench import tune as tuning
from runtime.bench.tune import is_masked_family, random_expert_ids, shape_of, with_limits
from runtime.errors import ConfigError
from runtime.kernels.fused_moe import fused_moe, tile_config
from runtime.kernels.fused_moe.moe_align import moe_align_block_size_reference
from runtime.kernels.fused_moe.tile_config import (
    FusedMoEConfig,
    GemmConfig,
    default_config,
    get_config,
    load_table,
    shape_key,
    write_table,
)
from runtime.kernels.ops import select_kernels
from runtime.quantization.base import get_format

CPU = torch.device("cpu")
CUTS = [
    FusedMoEConfig(128, GemmConfig(32, 64, (5, 4, n), 4), GemmConfig(128, 64, (3, 3, 3), 8, swap_ab=False))
    for n in (1, 2, 3)
]


def test_a_table_is_written_and_chosen_from(tmp_path, monkeypatch):
    monkeypatch.setattr(tile_config, "TABLES", tmp_path / "tuned")
    name = shape_key(256, 2048, 512)
    write_table(tile_config.table_path("Some GPU"), {name: with_limits([(1, CUTS[0]), (4, CUTS[1]), (256, CUTS[2])])})
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


@pytest.mark.parametrize(
    ("arch", "ranks", "expected", "masked"),
    [
        pytest.param("llada2-mini", 1, (257, 2048, 512, 9), True, id="llada2"),  # the shared expert is one of them
        pytest.param("llada2-mini", 2, (257, 2048, 256, 9), True, id="llada2-shard"),
        pytest.param("sdar-30b-a3b", 1, (128, 2048, 768, 8), True, id="sdar_moe"),
        pytest.param("diffusiongemma-26b-a4b", 1, (128, 2816, 704, 8), False, id="diffusion_gemma"),
    ],
)
def test_shapes_of_experts(arch, ranks, expected, masked):
    assert shape_of(arch, ranks) == expected
    assert is_masked_family(arch) is masked


@pytest.mark.parametrize(
    ("arch", "ranks", "message"),
    [
        ("llada2-mini", 3, "--tensor-parallel-size 3 does not divide the experts' width, 512"),
        pytest.param("llada-8b", 1, "--arch llada-8b has no experts", id="llada"),
    ],
)
def test_shapes_that_cannot_be_tuned(arch, ranks, message):
    with pytest.raises(ConfigError, match=message):
        shape_of(arch, ranks)


@pytest.mark.parametrize("half_masked", [True, False])
def test_expert_ids_are_distinct_and_masked_rows_agree(half_masked):
    ids = random_expert_ids(64, 100, 8, torch.device("cpu"), half_masked=half_masked)
    assert all(len(set(row)) == 8 for row in ids.tolist())
    masked, others = (ids.view(2, 2, 16, 8)[:, part].unique() for part in (0, 1))
    assert (2 * len(masked) < len(others)) is half_masked


SHAPE = 16, 256, 128, 2


@pytest.fixture
def timer(tmp_path, monkeypatch):
    """Replaces the device. `ms` has the times of configs by (pairs per tile, config); others take 1 ms."""
    fake = SimpleNamespace(ms={}, seconds=0.0, seconds_per_height=0.0, compiled=[])
    heights = []

    def aligned(ids, experts, height):
        heights.append(height)
        return moe_align_block_size_reference(ids, experts, height)

    def timed(run, candidates, repeats):
        fake.seconds += fake.seconds_per_height / 2
        return [fake.ms.get((heights[-1], config), 1.0) for config in candidates]

    monkeypatch.setattr(tile_config, "TABLES", tmp_path / "tuned")
    monkeypatch.setattr(tuning, "moe_align_block_size", aligned)
    monkeypatch.setattr(tuning, "_timed", timed)
    monkeypatch.setattr(tuning, "compile_kernels", lambda gemms, cases: fake.compiled.extend(map(len, cases)))
    monkeypatch.setattr(tuning, "shape_of", lambda arch, ranks: SHAPE)
    monkeypatch.setattr(tuning, "time", SimpleNamespace(monotonic=lambda: fake.seconds))

    def run(*flags):
        parser = argparse.ArgumentParser()
        tuning.add_arguments(parser)
        tuning.tune(parser.parse_args(list(flags)), torch.device("cpu"), "Some GPU")
        load_table.cache_clear()
        (rows,) = load_table("Some GPU").values()
        return rows

    fake.run = run
    load_table.cache_clear()
    yield fake
    load_table.cache_clear()


def test_the_fastest_tiles_of_each_number_of_rows_are_written(timer):
    short, tall = tuning.NARROW_DOWN[0], GemmConfig(32, 128, (4, 4, 3), 4)
    timer.ms = {(64, short): 0.5, (128, tall): 0.6}
    rows = timer.run("--rows", "8192", "128")
    assert timer.compiled == [8192, 128]
    (limit, few), (_, many) = rows
    assert limit == 128, "between 16 and 1,024 pairs per expert"
    assert get_config(16 * 16, 16, 2, 256, 128, "Some GPU") == few, "where the kernels look it up"
    assert (few.height, few.down) == (64, short), "1.5 ms in tiles of 64, 1.6 ms in tiles of 128"
    assert (many.height, many.gate_up) == (128, tall), "tiles of 64 are for fewer pairs"
    assert many.down == default_config(1024, 2, 256, 128).down


def test_the_default_stays_where_others_gain_less_than_two_percent(timer):
    default = default_config(16, 2, 256, 128)
    timer.ms = {(height, config): 0.99 for height in (64, 128) for config in tuning.GATE_UP + tuning.NARROW_DOWN}
    timer.ms |= {(128, default.gate_up): 1.0, (128, default.down): 1.0}
    assert timer.run("--rows", "128") == [(1e9, default)]


def test_rows_that_begin_after_the_time_limit_keep_the_default(timer, capsys):
    short = tuning.NARROW_DOWN[0]
    timer.ms, timer.seconds_per_height = {(64, short): 0.5}, 20.0
    rows = timer.run("--rows", "128", "1024", "8192", "--time-limit", "35")
    (_, few), (_, more), (limit, many) = rows
    assert few.down == short, "two heights of 128 rows"
    assert (more, many) == (default_config(128, 2, 256, 128), default_config(1024, 2, 256, 128))
    assert limit == 1e9
    assert "--time-limit reached, not tuned: 1024 rows and the following" in capsys.readouterr().out


def test_narrow_experts_have_candidates_of_their_own():
    narrow = tuning.ExpertGemms(4, 256, 128, torch.device("cpu"))
    wide = tuning.ExpertGemms(4, 256, 512, torch.device("cpu"))
    assert set(tuning.NARROW_DOWN) <= set(narrow.candidates(1000, 128)[1])
    assert not set(tuning.NARROW_DOWN) & set(wide.candidates(1000, 128)[1])
    for configs in narrow.candidates(16, 64):
        assert all(config.swap_ab for config in configs)


@pytest.mark.parametrize("format", ["fp8", "int8", "int4", "nvfp4"])
def test_quantized_weights_have_tables_of_their_own(timer, monkeypatch, format):
    gemms = tuning.ExpertGemms(*SHAPE[:3], CPU, format)
    kernels = select_kernels(CPU, torch.bfloat16, format)
    gate_up, down = (
        get_format(format).make(shape, torch.bfloat16, CPU, kernels, False).kernel_arg
        for shape in ((16, 256, 256), (16, 256, 128))
    )
    fast = gemms.candidates(256, 128)[1][-1]
    timer.ms = {(128, fast): 0.5}
    timer.run("--rows", "128", "--quantization", format)
    monkeypatch.setattr(tile_config, "device_name", lambda device: "Some GPU")
    x = torch.zeros(1, dtype=torch.bfloat16)
    chosen = [fused_moe._select_config(x, 256, gate_up, down, batch_invariant=invariant) for invariant in (False, True)]
    assert (chosen[0].height, chosen[0].down) == (128, fast)
    assert chosen[1] == gemms.default(256), "other tiles may sum in another order"
    assert get_config(256, 16, 2, 256, 128, "Some GPU") == default_config(16, 2, 256, 128)

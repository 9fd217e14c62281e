"""Compiles every kernel for Hopper (sm_90) in the shapes of LLaDA2.0-mini, without a GPU."""

import re
import subprocess
import tempfile

import pytest
import torch

triton = pytest.importorskip("triton")
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402
from triton.experimental.gluon._runtime import GluonASTSource  # noqa: E402

from runtime.kernels import (  # noqa: E402
    activation,
    bitmask_argmax,
    fused_argmax,
    fused_softmax_stats,
    layernorm,
    linear,
    lora,
    moe_router,
    next_segments,
    paged_attention,
    quantized_tensor,
    rotary_and_cache,
    segments,
    topk_topp_sampling,
    uniform_numbers,
    unmask,
    weighted_embedding,
)
from runtime.kernels.common import heads_per_program  # noqa: E402
from runtime.kernels.fused_moe import fused_moe, moe_align, tile_config  # noqa: E402
from runtime.kernels.paged_attention import page_strides  # noqa: E402
from runtime.layers.kv_pool import LAYOUTS, KVShape  # noqa: E402
from tests.matrix import marked  # noqa: E402

TARGET = GPUTarget("cuda", 90, 32)
SHARED_LIMIT = 227 * 1024  # bytes a block may use on Hopper
POINTER = {torch.float32: "*fp32", torch.bfloat16: "*bf16"}
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])


def build(kernel, types: dict[str, str | tuple[str, ...]], constants: dict[str, object], **options):
    """Compiles with pointers aligned to 16 bytes, as those of torch are; returns the compiled kernel."""
    order = kernel.arg_names
    signature = {name: types.get(name, "constexpr") for name in order}
    assert set(order) == types.keys() | constants.keys()
    paths = [(order.index(name),) for name, kind in types.items() if isinstance(kind, str) and kind.startswith("*")]
    paths += [
        (order.index(name), n) for name, kinds in types.items() if isinstance(kinds, tuple) for n in range(len(kinds))
    ]
    aligned = {path: [["tt.divisibility", 16]] for path in paths}
    source = (GluonASTSource if kernel.is_gluon() else ASTSource)(kernel, signature, constants, aligned)
    compiled = triton.compile(source, target=TARGET, options=options)
    assert compiled.metadata.shared <= SHARED_LIMIT
    return compiled


def typed(**names: str) -> dict[str, str]:
    """Returns the type of each argument: names by type, where `p` before a type makes a pointer."""
    return {
        name: f"*{kind[1:]}" if kind.startswith("p") else kind for kind, some in names.items() for name in some.split()
    }


def strides_of(layout: str, heads: int, dim: int, page: int = 32) -> dict[str, int]:
    """Returns the page strides of a KV pool with `page` tokens per page."""
    shape = KVShape(heads, dim, dim)
    return page_strides(
        *LAYOUTS[layout]([shape], num_pages=1, page_size=page, dtype=torch.bfloat16, device="meta").layer(0)
    )


def spilled(compiled) -> int:
    """Returns the bytes of stack per thread, to which registers spill."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        command = [triton.knobs.nvidia.cuobjdump.path, "--dump-resource-usage", file.name]
        usage = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    (stack,) = re.findall(r"REG:\d+ STACK:(\d+)", usage)
    return int(stack)


def check_gemm(compiled, described: bool | None = None) -> None:
    """Checks that the kernel uses Hopper's matrix units without spills. `described`: whether TMA loads its operands."""
    assert spilled(compiled) == 0
    assert "wgmma" in compiled.asm["ptx"], "the GEMM does not use Hopper's matrix units"
    if described is not None:
        assert ("cp.async.bulk.tensor" in compiled.asm["ptx"]) == described


@pytest.mark.parametrize(("add", "weighted"), [(False, True), (True, True), (False, False)])
def test_rms_norm(add, weighted):
    p = POINTER[torch.bfloat16]
    types = dict.fromkeys(("residual_ptr", "weight_ptr", "out_ptr", "sum_ptr"), p) | {"eps": "fp32", "rows": "i32"}
    for splits, x in ((1, p), (2, "*fp32")):
        constants = {"SIZE": 2048, "SIZE_P2": 2048, "ADD": add, "WEIGHTED": weighted, "SPLITS": splits}
        build(layernorm._rms_norm, types | {"x_ptr": x}, constants, num_warps=4)


@DTYPES
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_reduce_add_norm(ranks, dtype):
    p = POINTER[dtype]
    types = {"ranks": (p,) * ranks, "eps": "fp32", "first": "i32"} | dict.fromkeys(
        ("residual_ptr", "weight_ptr", "sum_ptr"), p
    )
    constants = {"SIZE": 2048, "SIZE_P2": 2048, "WEIGHTED": True, "RANKS": ranks}
    compiled = build(layernorm._reduce_add_norm, types, constants, num_warps=4)
    assert spilled(compiled) == 0
    assert set(re.findall(r"(?:ld|st)\.global[.\w]*", compiled.asm["ptx"])) == {"ld.global.v4.b32", "st.global.v4.b32"}


@pytest.mark.matrix
@pytest.mark.parametrize(("norm", "clip"), [(True, False), (False, False), (True, True)])
def test_rotary(norm, clip):
    p = POINTER[torch.bfloat16]
    types = dict.fromkeys(("qkv_ptr", "q_weight_ptr", "k_weight_ptr", "q_ptr", "k_ptr", "v_ptr"), p)
    types |= {"slots_ptr": "*i64", "positions_ptr": "*i64", "table_ptr": "*fp32", "eps": "fp32", "clip": "fp32"}
    constants = {
        "HEADS": 16, "KV_HEADS": 4, "DIM": 128, "ROTARY": 64, "DIM_P2": 128, "NORM": norm, "CLIP": clip,
        "PAIR_STRIDE": 32, "V_NORM": False, "V_FROM_K": False,
    }  # fmt: skip
    large = {"KV_HEADS": 2, "DIM": 512, "ROTARY": 128, "DIM_P2": 512, "PAIR_STRIDE": 256}
    large |= {"V_NORM": True, "V_FROM_K": True}
    for own in ({}, {"HEADS": 96, "KV_HEADS": 8}, large):
        shape = constants | own
        together = heads_per_program(shape["HEADS"] + 2 * shape["KV_HEADS"], shape["DIM"])
        for layout in LAYOUTS:
            pages = strides_of(layout, shape["KV_HEADS"], shape["DIM"])
            own = shape | {"HEADS_PER_PROGRAM": together} | pages
            assert spilled(build(rotary_and_cache._qk_norm_rope_and_cache, types, own, num_warps=4)) == 0


def test_gate():
    p = POINTER[torch.bfloat16]
    for gelu, run in ((False, 5120), (True, 8)):
        constants = {"WIDTH": 5120, "INTERLEAVE": run, "COLUMNS": 1024, "GELU": gelu}
        compiled = build(activation._act_and_mul, {"gate_up_ptr": p, "out_ptr": p}, constants, num_warps=4)
        assert re.search(r"ld\.global(\.\w+)*\.v4\.b32", compiled.asm["ptx"]), "loads are not of 16 bytes"


POOL = typed(pfp32="logits_ptr bias_ptr", pi64="first_ptr", pi8="pool_ptr", i32="rows")
SELECTED = typed(pi32="ids_ptr", pfp32="weights_ptr", fp32="scale")


@pytest.mark.parametrize(("softmax", "weighs"), [(True, False), (False, False), (True, True)])
def test_routing(softmax, weighs):
    constants = {
        "EXPERTS": 256, "GROUPS": 8, "TOPK_GROUP": 4, "TOP_K": 8, "GROUPS_P2": 8, "SIZE_P2": 32, "TOP_P2": 16,
        "BIASED": True, "BIAS_IN_WEIGHTS": weighs, "NORMALIZE": True, "SOFTMAX": softmax,
        "POOLED": False, "SPLITS": 8, "SHARED": 1,
    }  # fmt: skip
    build(moe_router._select_experts, POOL | SELECTED, constants, num_warps=1)


def test_routing_in_a_pool():
    shape = {"EXPERTS": 256, "BIASED": True, "SOFTMAX": False, "SPLITS": 4}
    pool = {"EXPERTS_P2": 256, "CAPACITY": 48, "BLOCK": 32}
    build(moe_router._pool, POOL, shape | pool, num_warps=1)
    constants = shape | {
        "GROUPS": 1, "TOPK_GROUP": 1, "TOP_K": 8, "GROUPS_P2": 1, "SIZE_P2": 256, "TOP_P2": 8,
        "BIAS_IN_WEIGHTS": False, "NORMALIZE": True, "POOLED": True, "SHARED": 0,
    }  # fmt: skip
    build(moe_router._select_experts, POOL | SELECTED, constants, num_warps=1)


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("rows", "wide", "scaled"), [(16, False, False), (64, True, False), (8192, False, True), (8192, True, False)]
)
def test_router(rows, wide, scaled):
    taken, lines, split_size = moe_router.select_router_config(rows, 2048, 256)
    types = {"x_ptr": "*fp32" if wide else "*bf16", "parts_ptr": "*bf16", "rows": "i32"}
    types |= dict.fromkeys(("factor_ptr", "out_ptr"), "*fp32")
    constants = {
        "EXPERTS": 256, "INPUTS": 2048, "SPLIT_SIZE": split_size, "ROWS": lines, "EXPERTS_PER_PROGRAM": taken,
        "DEPTH": moe_router.DEPTH, "WIDE": wide, "SCALED": scaled,
    }  # fmt: skip
    warps = 4 * taken // moe_router.EXPERTS_PER_PROGRAM
    compiled = build(moe_router._router, types, constants, num_warps=warps, num_stages=2 if wide else 3)
    check_gemm(compiled)


def test_expert_sort():
    types = typed(pi32="ids_ptr order_ptr tiles_ptr counters_ptr", i32="pairs max_tiles")
    for read in (256, moe_align.ONE_LAUNCH_PAIRS):
        shape = {"ROWS": 128, "READ": read, "TILES_PER_STEP": moe_align.TILES_PER_STEP}
        assert spilled(build(moe_align._sort, types, shape, num_warps=8)) == 0
    shape = {"EXPERTS_P2": 512, "CHUNK": moe_align.CHUNK}
    build(moe_align._count, {"ids_ptr": "*i32", "counts_ptr": "*i32", "pairs": "i32"}, shape, num_warps=4)
    own = {"counts_ptr": "*i32", "totals_ptr": "*i32", "chunks": "i32"}
    adding = {name: getattr(moe_align, name) for name in ("CHUNKS_PER_STEP", "EXPERTS_PER_PROGRAM")}
    adding["EXPERTS_P2"] = 512
    assert spilled(build(moe_align._prefix_sum, own, adding, num_warps=8)) == 0
    types |= own | {"starts_ptr": "*i32", "experts": "i32"}
    shape |= {"ROWS": 128, "COMPARE_CHUNK": moe_align.COMPARE_CHUNK, "TILES_PER_STEP": moe_align.TILES_PER_STEP}
    compiled = build(moe_align._scatter, types, shape, num_warps=8)
    assert spilled(compiled) == 0


def boxed(rows: int, columns: int, kind: str = "bf16") -> str:
    """Returns the type of a TMA descriptor with blocks of this shape."""
    return f"tensordesc<{kind}[{rows}, {columns}]>"


def build_gemm(
    first: bool, how: tile_config.GemmConfig, height: int, hidden: int, width: int, described: bool, *,
    data: str = "bf16", form: str = "float", kind: str | None = None, group: int = 0, stored_depth: int = 0,
    decode: str | None = None,
):  # fmt: skip
    """Compiles the gate-up (`first`) or the down GEMM of fused MoE.

    Args:
        form, kind, group, stored_depth: the format of the weights, its Triton dtype, group size and codes per tile.
        decode: Triton's type of the zero points, or of the values of the codes.
    """
    (low, middle, high), quantized, kind = how.stages, form != "float", kind or data
    types = {"order_ptr": "*i32", "tiles_ptr": "*i32", "max_tiles": "i32"}
    constants = {
        "HIDDEN": hidden, "WIDTH": width, "HEIGHT": height, "COLUMNS": how.columns, "DEPTH": how.depth,
        "LOW": low, "MIDDLE": middle, "HIGH": high, "SWAP_AB": how.swap_ab, "TMA": described,
        "TAIL": 0 if quantized else how.tail_rows(height), "FORMAT": form, "GROUP": group,
    }  # fmt: skip
    weights = boxed((2 if first else 1) * how.columns, stored_depth or how.depth, kind) if described else f"*{kind}"
    types |= {"weights": weights, "hidden_ptr": f"*{data}"}
    scales = {"scales_ptr": quantized, "x_scales_ptr" if first else "hidden_scales_ptr": form == "fp8"}
    (types if decode else constants)["decode_ptr"] = decode
    for name, has_scales in scales.items():
        words = "*i32" if form == "nvfp4" else "*fp32"
        (types if has_scales else constants)[name] = words if has_scales else None
    if first:
        constants |= {"TOP_K": 8, "INTERLEAVE": activation.interleave_group(width), "GELU": False}
        types["x_ptr"] = "*fp8e4nv" if form == "fp8" else f"*{data}"
    else:
        constants["HIDDEN_TMA"] = described and not quantized
        types |= {"pairs_ptr": f"*{data}"} | ({"hidden_ptr": "*fp8e4nv"} if form == "fp8" else {})
        for name, rows in (("middle", 64), ("hidden", height), ("tail", how.tail_rows(height) or height)):
            unquantized = boxed(rows, how.depth) if described else f"*{data}"
            (constants if quantized else types)[name] = None if quantized else unquantized
    return build(fused_moe._gate_up if first else fused_moe._down, types, constants, num_warps=how.warps)


GEMMS = [(torch.float32, 1000, False), *((torch.bfloat16, pairs, True) for pairs in (1, 64, 1000))]
GEMMS += [(torch.bfloat16, 64, False)]


@pytest.mark.parametrize(("dtype", "pairs_per_expert", "described"), marked(GEMMS, quick=[(torch.bfloat16, 64, True)]))
def test_moe_gemms(dtype, pairs_per_expert, described):
    size = dtype.itemsize
    height, *configs = tile_config.get_config(256 * pairs_per_expert, 256, size, 2048, 512)
    for first, how in zip((True, False), configs, strict=True):
        data = POINTER[dtype].removeprefix("*")
        compiled = build_gemm(first, how, height, 2048, 512, described, data=data)
        if size == 2:
            check_gemm(compiled, described)


@pytest.mark.matrix
@DTYPES
@pytest.mark.parametrize("rows", [1, 50, 256])
def test_soft_embedding(rows, dtype):
    p, how = POINTER[dtype], weighted_embedding.tile_sizes(rows, 4 if dtype == torch.float32 else 2)
    constants = {
        "IDS": 262144, "SIZE": 2816, "SPLIT_SIZE": weighted_embedding.SPLIT_SIZE, "ROWS": how.rows,
        "COLUMNS": how.columns, "DEPTH": how.depth, "STAGES": how.stages,
    }  # fmt: skip
    types = {"probs_ptr": p, "table_ptr": p, "out_ptr": "*fp32", "rows": "i32"}
    compiled = build(weighted_embedding._soft_embedding, types, constants, num_warps=how.warps)
    if dtype == torch.bfloat16:
        check_gemm(compiled)
    types = {"parts_ptr": "*fp32", "divisor_ptr": "*fp32", "out_ptr": p, "rows": "i32"}
    for divided in (False, True):
        constants = {"SIZE": 2816, "SPLITS": 16, "TILE": weighted_embedding.TILE, "DIVIDED": divided}
        build(weighted_embedding._sum_splits, types, constants, num_warps=4)


def test_moe_batch_invariant_gemm():
    how = tile_config.get_config(256 * 300, 256, 2, 2048, 512).down
    types = {"x_desc": boxed(128, how.depth), "weights": boxed(how.columns, how.depth), "pairs_ptr": "*bf16"}
    types |= {"order_ptr": "*i32", "tiles_ptr": "*i32", "max_tiles": "i32"}
    constants = {
        "HIDDEN": 2048, "WIDTH": 512, "HEIGHT": 128, "COLUMNS": how.columns, "DEPTH": how.depth,
        "STAGES": how.stages[2], "TILES_P2": 1024, "TMA": True, "X_TMA": True,
    }  # fmt: skip
    compiled = build(fused_moe._persistent_down, types, constants, num_warps=how.warps)
    check_gemm(compiled)
    assert compiled.metadata.shared * fused_moe.PROGRAMS_PER_SM <= SHARED_LIMIT


@pytest.mark.matrix
@pytest.mark.parametrize("path", sorted(tile_config.TABLES.glob("*.json")), ids=lambda path: path.stem)
def test_moe_gemms_as_tuned(path):
    """Every config of a shipped tuned table compiles without register spills, in the shape it was tuned for."""
    for shape, rows in tile_config.load_table(path.stem.replace("_", " ")).items():
        hidden, width = (int(size) for size in re.findall(r"(\d+) to (\d+)", shape)[0])
        for first in (True, False):
            for height, how in {(chosen.height, chosen.gate_up if first else chosen.down) for _, chosen in rows}:
                assert spilled(build_gemm(first, how, height, hidden, width, True)) == 0


@pytest.mark.parametrize(("norm", "rounded"), [(False, False), (True, False), (True, True)])
def test_experts_sum(norm, rounded):
    types = typed(
        pbf16="pairs_ptr shared_ptr residual_ptr norm_ptr out_ptr sum_ptr", pi32="ids_ptr", pfp8e4nv="values_ptr",
        pfp32="weights_ptr scales_ptr", fp32="eps",
    )  # fmt: skip
    constants = {"TOP_K": 9, "HIDDEN": 2048, "COLUMNS": 2048, "SHARED": True, "NORM": norm, "WEIGHTED": True}
    constants |= {"QUANTIZED": rounded, "FP8_MAX": quantized_tensor.FP8_MAX, "MIN_SCALE": quantized_tensor.MIN_SCALE}
    assert spilled(build(fused_moe._moe_sum, types, constants, num_warps=4)) == 0


SHAPES = [
    (128, 32, 4, False, 32), (128, 256, 4, True, 32), (128, 32, 1, False, 32), (128, 256, 1, False, 64),
    (128, 64, 7, False, 32), (128, 256, 4, True, 128), (256, 256, 2, True, 32), (256, 256, 2, True, 16),
    (512, 256, 8, False, 32), (512, 256, 8, False, 16), (512, 32, 1, False, 32),
]  # fmt: skip
ATTENTIONS = [(*shape, torch.bfloat16, "unified") for shape in SHAPES]
ATTENTIONS += [(*shape, torch.bfloat16, "distinct") for shape in SHAPES[1::3]]
ATTENTIONS += [(*shape, torch.float32, "unified") for shape in SHAPES[::5]]


def build_attention(
    tile, dim: int, packed: int, windowed: bool, splits: int, page: int, dtype: torch.dtype, layout: str
):
    """Compiles paged attention with 4 KV heads in a configuration."""
    p = POINTER[dtype]
    types = dict.fromkeys(("q_ptr", "k_ptr", "v_ptr"), p) | {"out_ptr": p if splits == 1 else "*fp32"}
    types |= typed(
        pi32="tiles_ptr visible_end_ptr table_ptr", pi64="window_pos_ptr", pfp32="stats_ptr", fp32="scale_log2",
        i32="table_stride all_rows window",
    )  # fmt: skip
    constants = {
        "HEADS": 4 * packed, "KV_HEADS": 4, "DIM": dim, **strides_of(layout, 4, dim, page), "PACKED": packed,
        "PACKED_P2": triton.next_power_of_2(packed), "ROWS": tile.rows, "KEYS": tile.keys, "DIM_P2": dim,
        "VALUES": tile.values, "WINDOWED": windowed, "SPLITS": splits,
        "SPLIT_SIZE": paged_attention.SPLIT_SIZE if windowed else 0,
    }  # fmt: skip
    return build(paged_attention._paged_attention, types, constants, num_warps=tile.warps, num_stages=tile.stages)


@pytest.mark.parametrize(
    ("dim", "tile_rows", "packed", "windowed", "page", "dtype", "layout"), marked(ATTENTIONS, quick=ATTENTIONS[:1])
)
def test_paged_attention(dim, tile_rows, packed, windowed, page, dtype, layout):
    splits = 9 if tile_rows == 32 or windowed else 1
    size, packed_p2 = dtype.itemsize, triton.next_power_of_2(packed)
    tile = paged_attention.select_config(packed_p2, dim, size, tile_rows)
    compiled = build_attention(tile, dim, packed, windowed, splits, page, dtype, layout)
    if size == 2 and packed_p2 * tile.rows >= 64:
        few = 0 if dim <= 128 else 384 if splits > 1 else 128
        assert spilled(compiled) <= few, "the kernel spills more than the few registers that make it faster"
        assert "wgmma" in compiled.asm["ptx"]
        assert "cp.async.cg.shared.global" in compiled.asm["ptx"], "keys and values are not loaded 16 bytes at a time"
        assert "ld.global.b16" not in compiled.asm["ptx"]


@pytest.mark.matrix
@pytest.mark.parametrize("packed", [4, 8])
def test_paged_attention_at_high_occupancy(packed):
    tile = paged_attention.select_config_high_occupancy(packed, 128, 2, 32)
    assert (tile.rows * packed, tile.keys) == (128, 32)
    compiled = build_attention(tile, 128, packed, False, 1, 32, torch.bfloat16, "unified")
    assert spilled(compiled) <= 32
    assert "wgmma" in compiled.asm["ptx"]


@pytest.mark.matrix
@pytest.mark.parametrize("layout", list(LAYOUTS))
def test_two_pass_attention(layout):
    scores_config, values_config = paged_attention.SCORES_CONFIG, paged_attention.VALUES_CONFIG
    types = typed(
        pbf16="q_ptr k_ptr v_ptr p_ptr out_ptr", pfp32="alpha_ptr l_ptr", fp32="scale_log2",
        pi32="tiles_ptr visible_end_ptr table_ptr", i32="table_stride first_tile kv_tiles",
    )  # fmt: skip
    constants = {
        "HEADS": 16, "KV_HEADS": 2, "DIM": 512, **strides_of(layout, 2, 512), "PACKED_P2": 8,
        "ROWS": scores_config.block_m // 8, "KEYS": scores_config.keys, "DEPTH": scores_config.depth,
        "SUB_KEYS": values_config.keys, "VALUES": values_config.values,
    }  # fmt: skip
    for kernel, how in ((paged_attention._scores, scores_config), (paged_attention._values, values_config)):
        names = kernel.arg_names
        taken, own = ({n: of[n] for n in names if n in of} for of in (types, constants))
        compiled = build(kernel, taken, own, num_warps=how.warps, num_stages=how.stages)
        assert spilled(compiled) <= 8
        assert "wgmma" in compiled.asm["ptx"]
        assert "cp.async.cg.shared.global" in compiled.asm["ptx"], "loads are not of 16 bytes"
        assert "ld.global.b16" not in compiled.asm["ptx"]


def test_topk_topp_sampling():
    types = typed(
        pfp32="logits_ptr conf_ptr", pfp64="params_ptr uniform_ptr", pi64="token_ptr",
        i32="stride params_stride vocab num_unfiltered",
    )  # fmt: skip
    constants = {name: getattr(topk_topp_sampling, name) for name in ("NUM_THRESHOLDS", "SEARCH_TILE", "TILE")}
    assert spilled(build(topk_topp_sampling._sample, types, constants, num_warps=topk_topp_sampling.WARPS)) == 0


def test_combining_splits():
    types = {"partial_ptr": "*fp32", "stats_ptr": "*fp32", "out_ptr": "*bf16", "all_rows": "i32"}
    constants = {"HEADS": 16, "DIM": 128, "SPLITS": 9, "HEADS_P2": heads_per_program(16, 128), "DIM_P2": 128}
    assert spilled(build(paged_attention._merge_split_kv, types, constants, num_warps=4)) == 0


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("rows", "dtype", "described"),
    [(60, torch.float32, False), (60, torch.bfloat16, False),
     *((n, torch.bfloat16, True) for n in (1, 60, 1000, 8192))],
)  # fmt: skip
def test_gemm(rows, dtype, described):
    size = dtype.itemsize
    how, p = linear.batch_invariant_tile_sizes(rows, 2048, size), POINTER[dtype]
    types = {"bias_ptr": p, "out_ptr": p, "rows": "i32"}
    for name, height in (("x_desc", how.rows), ("weights", how.columns)):
        types[name] = boxed(height, how.depth) if described else p
    constants = {
        "INPUTS": 2048, "OUTPUTS": 3072, "ROWS": how.rows, "COLUMNS": how.columns, "DEPTH": how.depth,
        "STAGES": how.stages, "BIASED": True, "X_TMA": described, "TMA": described,
    }  # fmt: skip
    compiled = build(linear._gemm, types, constants, num_warps=how.warps)
    if size == 2:
        check_gemm(compiled)


@pytest.mark.matrix
@pytest.mark.parametrize("tile", [tile for tiles in activation.GATE_UP_TILES.values() for tile in tiles], ids=str)
def test_gate_up_gemm(tile):
    types = {"x_desc": boxed(tile.rows, tile.depth), "weights": boxed(tile.columns, tile.depth), "out_ptr": "*bf16"}
    types |= {"extra_weights": boxed(tile.extra_columns or tile.columns, tile.depth), "rows": "i32", "row_tiles": "i32"}
    constants = {
        "INPUTS": 4096, "WIDTH": 12288, "INTERLEAVE": 8, "ROWS": tile.rows, "COLUMNS": tile.columns,
        "EXTRA_COLUMNS": tile.extra_columns, "DEPTH": tile.depth, "STAGES": tile.stages, "X_TMA": True, "TMA": True,
        "GELU": False,
    }  # fmt: skip
    compiled = build(activation._fused_gate_up, types, constants, num_warps=tile.warps)
    check_gemm(compiled)
    assert "mma.sync" not in compiled.asm["ptx"]


@pytest.mark.matrix
@pytest.mark.parametrize("rows", [1, 17, 65, 161, 193])
@pytest.mark.parametrize(
    ("dtype", "batch_invariant"), [(torch.float32, False), (torch.bfloat16, False), (torch.bfloat16, True)]
)
def test_head(rows, dtype, batch_invariant):
    config = fused_argmax.select_config(rows, 2048, dtype.itemsize, batch_invariant=batch_invariant)
    types = typed(pfp32="max_logit_ptr sum_exp_ptr", pi32="token_ptr num_valid_ptr")
    join = types | {"out_ptr": "*i64", "conf_ptr": "*fp32", "logit_ptr": "*fp32", "rows": "i32", "pieces": "i32"}
    build(fused_argmax._merge_partials, join, {"BLOCK_M": 4, "PIECES": 256, "HAS_NUM_VALID": True}, num_warps=4)
    types |= dict.fromkeys(("rows", "vocab", "mask_id", "max_id", "allowed_id_a", "allowed_id_b"), "i32")
    described = dtype == torch.bfloat16
    heights = {"hidden": config.block_m, "tail_hidden": config.tail_m or config.block_m, "weights": config.block_n}
    for name, size in heights.items():
        types[name] = boxed(size, config.block_k) if described else POINTER[dtype]
    constants = {
        "HIDDEN_SIZE": 2048, "BLOCK_M": config.block_m, "BLOCK_N": config.block_n, "BLOCK_K": config.block_k,
        "STAGES": config.stages, "SWAP_AB": config.swap_ab, "TAIL_M": config.tail_m, "TAIL_STAGES": config.tail_stages,
        "HAS_NUM_VALID": True, "TMA": described,
    }  # fmt: skip
    compiled = build(fused_argmax._partial_argmax, types, constants, num_warps=config.warps)
    if described:
        check_gemm(compiled)


def test_expand_segments():
    types = typed(
        pi64="tokens_ptr positions_ptr slots_ptr window_pos_ptr conditioning_ptr",
        i32="rows tiles pages_stride max_len tile_rows",
        pi1="is_editable_ptr",
        pi32="segments_ptr token_table_ptr pages_ptr visible_end_ptr lora_slots_ptr tiles_ptr",
    )  # fmt: skip
    constants = {"PAGE_SIZE": 32, "FIELDS": segments.FIELDS, "ROWS": segments.ROWS}
    assert spilled(build(segments._expand_segments, types, constants, num_warps=4)) == 0


def test_bitmask_argmax():
    types = typed(pfp32="logits_ptr", pi64="rows_ptr", pi32="bitmask_ptr", pfp64="out_ptr", i32="vocab words count")
    constants = {"TILE": bitmask_argmax.TILE}
    assert spilled(build(bitmask_argmax._bitmask_argmax, types, constants, num_warps=8)) == 0


def test_uniform_numbers():
    types = typed(pi64="draws_ptr block_ptr at_ptr", pfp64="out_ptr", i32="rows stream")
    constants = {"ROWS": uniform_numbers.ROWS}
    assert spilled(build(uniform_numbers._uniform_numbers, types, constants, num_warps=4)) == 0


def test_choose_segments():
    types = typed(
        pi64="masks_ptr first_masked_ptr first_eos_ptr finished_ptr",
        pi32="outcomes_ptr offer_ptr segments_ptr choice_ptr",
    )  # fmt: skip
    constants = {
        "ENDS": next_segments.ENDS, "FIELDS": segments.FIELDS, "HEADER": next_segments.HEADER, "MAX_TILE_ROWS": 256,
        "PADDING": segments.PADDING, "REMAINDER": segments.REMAINDER, "REQUESTS": next_segments.REQUESTS,
    }  # fmt: skip
    assert spilled(build(next_segments._choose_segments, types, constants, num_warps=4)) == 0


@pytest.mark.parametrize("size", [32, 256])
def test_threshold_unmask(size):
    types = typed(
        pi64="first_ptr size_ptr block_numbers_ptr token_ptr block_ptr at_ptr eos_ptr numbers_ptr new_tokens_ptr",
        pi32="tokens_ptr", pi8="states_ptr new_state_ptr", pfp64="params_ptr", pfp32="conf_ptr",
        i32="rows blocks mask_id",
    )  # fmt: skip
    constants = {
        "BLOCK_NUMBERS": 5, "MUST_ADVANCE": 0, "NUM_STEPS": 1, "COLUMNS": 8, "THRESHOLD": 3, "STEPS": 6, "SIZE": size,
        "SIZE_P2": size, "ROWS": unmask.rows_per_iteration(size), "EOS": 1,
    }  # fmt: skip
    assert spilled(build(unmask._threshold_unmask, types, constants, num_warps=4)) == 0


@pytest.mark.parametrize("draws", [False, True])
def test_softmax_stats(draws):
    floats = dict.fromkeys(
        ("logits_ptr", "temperature_ptr", "max_logit_ptr", "sum_exp_ptr", "weighted_ptr", "prob_sum_ptr"), "*fp32"
    )
    numbers = dict.fromkeys(("vocab", "mask_id", "max_id"), "i32") | {"cap": "fp32"}
    piece = {"PIECE": fused_softmax_stats.PIECE, "MAX_EXPONENT": fused_softmax_stats.MAX_EXPONENT, "WRITE_PROBS": True}
    types = floats | numbers | {"token_ptr": "*i32", "pieces": "i32"}
    assert spilled(build(fused_softmax_stats._piece_stats, types | {"probs_ptr": "*bf16"}, piece, num_warps=2)) == 0
    types |= {"uniform_ptr": "*fp64"} | dict.fromkeys(("sampled_ptr", "argmax_ptr"), "*i64")
    types |= dict.fromkeys(("conf_ptr", "entropy_ptr", "largest_ptr", "sum_ptr", "divisor_ptr"), "*fp32")
    piece |= {"MIN_EXPONENT": fused_softmax_stats.MIN_EXPONENT, "HALF_MAX": fused_softmax_stats.HALF_MAX}
    build(fused_softmax_stats._merge_pieces, types, piece | {"PIECES": 128, "DRAWS": draws}, num_warps=4)
    types = dict.fromkeys(("logits_ptr", "temperature_ptr", "largest_ptr", "sum_ptr", "divisor_ptr"), "*fp32") | numbers
    for probs, written in (("*bf16", False), ("*fp16", True)):
        types["probs_ptr"], piece = probs, {"PIECE": fused_softmax_stats.WRITE_PIECE, "ALL": written}
        assert spilled(build(fused_softmax_stats._write_probs, types, piece, num_warps=8)) == 0


def test_sandwich():
    size, warps = {"SIZE": 2816, "SIZE_P2": 4096}, {"num_warps": layernorm.SANDWICH_WARPS}
    names = "mixed_ptr x_ptr post_attention_ptr dense_ptr experts_ptr total_ptr dense_out experts_out"
    types = typed(pbf16=names, pfp32="factor_out", fp32="eps")
    assert spilled(build(layernorm._pre_mlp_norms, types, size, **warps)) == 0
    types = typed(
        pbf16="dense_ptr chosen_ptr x_ptr scale_ptr a_ptr b_ptr c_ptr d_ptr out_ptr total_ptr", pi32="ids_ptr",
        pfp32="weights_ptr expert_scale_ptr", fp32="eps",
    )  # fmt: skip
    for top_k in (0, 8):
        assert spilled(build(layernorm._post_mlp_norms, types, size | {"TOP_K": top_k}, **warps)) == 0


@pytest.mark.matrix
@pytest.mark.parametrize(("dtype", "rank"), [(torch.float32, 16), (torch.bfloat16, 64)])
def test_lora(dtype, rank):
    """Compiles the LoRA kernels for the fused QKV projection, which checkpoints store as three weights."""
    data = POINTER[dtype]
    block_k, block_n = lora.tile_sizes(rank, dtype.itemsize)
    common = typed(pi32="lora_slots_ptr tiles_ptr", i32="rows", pfp32="shrunk_ptr")
    shared = {"RANK": rank, "PARTS": 3, "BLOCK_M": 32, "CHUNKS": 8}
    shared["PRECISION"] = "ieee" if dtype == torch.float32 else "tf32"
    shrink = {"INPUTS": 2048, "SPAN": 512, "BLOCK_K": block_k, "STAGES": 3}
    build(lora._shrink, common | {"x_ptr": data, "lora_a_ptr": data}, shared | shrink, num_warps=4)
    cuts = {"OUTPUTS": 3072, "CUT1": 2048, "CUT2": 2560, "SPLITS": 4, "BLOCK_N": block_n}
    build(lora._expand, common | {"out_ptr": data, "lora_b_ptr": data}, shared | cuts, num_warps=4)

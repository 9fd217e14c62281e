"""Tests of the training model: it computes LLaDA2, packed rows see the same tokens as in serving, exports load."""

import dataclasses
import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests.oracle.model import OracleModel
from training.demo.batch import to_device
from training.demo.data import CONTEXT, Documents, Noiser, NoiseRecipe, Packer, batches
from training.demo.export import checkpoint_tensors, export
from training.demo.model import DemoModel, Gate, training_blocks, training_mask
from training.demo.norm import FewPassNorm
from training.demo.optim import orthogonalize
from training.demo.presets import PRESETS
from training.demo.shape import Shape
from training.demo.tokenizer import ChatEncoder, make_tokenizer

TINY = Shape(
    hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
    moe_intermediate_size=16, block_size=8,
)  # fmt: skip
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def encoder():
    return ChatEncoder(make_tokenizer())


def make(shape: Shape = TINY, dispatch: str = "loop", seed: int = 0) -> DemoModel:
    torch.manual_seed(seed)
    model = DemoModel(shape, dispatch)
    for gate in model.gates():
        gate.expert_bias.normal_(0, 0.2)
    for name, p in model.named_parameters():
        if "norm" in name:
            p.data.uniform_(0.5, 1.5)
    return model.eval()


def block_causal(length: int, size: int) -> torch.Tensor:
    block = torch.arange(length) // size
    return (block <= block.unsqueeze(1))[None, None]


def test_both_ways_of_running_the_experts_agree() -> None:
    torch.manual_seed(1)
    x = torch.randn(40, TINY.hidden_size)
    loop = make().model.layers[1].mlp
    other = make(dispatch="dense").model.layers[1].mlp
    outs = []
    for moe in (loop, other):
        own = x.clone().requires_grad_()
        out = moe(own.unsqueeze(0)).squeeze(0)
        (out * torch.linspace(-1, 1, out.numel()).view_as(out)).sum().backward()
        outs.append((out.detach(), own.grad, moe.experts.gate_proj.grad, moe.experts.down_proj.grad))
    for a, b in zip(*outs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5 * a.abs().max().item())


def test_noised_blocks_see_earlier_clean_blocks_and_themselves(encoder) -> None:
    """Packed clean and noised copies give the same hidden states as one block at a time behind its clean past."""
    weights = {"add": 1.0, "followup": 1.0, "count": 1.0}
    noiser = Noiser(encoder, NoiseRecipe(corrupt=0.5), 3)
    batch = to_device(next(batches(Documents(encoder, weights, "s"), noiser, 3, 160, encoder.eos)), CPU)
    model = make()
    hidden = model(batch["ids"], batch["positions"], training_mask(batch["docs"], batch["blocks"], batch["noised"]))
    checked = 0
    for row in range(3):
        for doc in range(int(batch["docs"][row].max()) + 1):
            of_doc = batch["docs"][row] == doc
            for block in batch["blocks"][row][of_doc & batch["noised"][row]].unique():
                own = of_doc & batch["noised"][row] & (batch["blocks"][row] == block)
                past = of_doc & ~batch["noised"][row] & (batch["blocks"][row] < block)
                ids = torch.cat((batch["ids"][row][past], batch["ids"][row][own]))
                assert len(ids) == int(own.sum()) * (int(block) + 1)
                mask = block_causal(len(ids), int(own.sum()))
                expected = model(ids.unsqueeze(0), torch.arange(len(ids)).unsqueeze(0), mask)[0, -int(own.sum()) :]
                torch.testing.assert_close(hidden[row][own], expected, rtol=1e-4, atol=1e-4)
                checked += 1
    assert checked >= 6


def test_both_attention_masks_of_training_are_equal(encoder) -> None:
    shape = dataclasses.replace(TINY, hidden_size=64, head_dim=16)  # the smallest head_dim that FlexAttention supports
    noiser = Noiser(encoder, NoiseRecipe(corrupt=0.5), 3)
    batch = to_device(
        next(batches(Documents(encoder, {"add": 1.0, "json": 1.0}, "s"), noiser, 2, 256, encoder.eos)), CPU
    )
    seen = batch["docs"], batch["blocks"], batch["noised"]
    model = make(shape)
    with torch.no_grad():
        dense, tiled = (
            model(batch["ids"], batch["positions"], mask(*seen)) for mask in (training_mask, training_blocks)
        )
    torch.testing.assert_close(dense, tiled, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_routing_takes_the_best_experts_of_the_best_groups(groups) -> None:
    torch.manual_seed(2)
    shape = dataclasses.replace(TINY, n_group=groups, topk_group=max(1, groups // 2), num_experts_per_tok=2)
    gate = Gate(shape)
    gate.weight.data.normal_()
    gate.expert_bias.normal_()
    gate.train()
    x = torch.randn(50, shape.hidden_size)
    chosen, weights = gate(x)
    scores = torch.sigmoid(x @ gate.weight.T)
    for row, (own, experts) in enumerate(zip(scores, chosen, strict=True)):
        ranked = (own + gate.expert_bias).view(groups, -1)
        best = ranked.topk(2, dim=-1).values.sum(-1).topk(shape.topk_group).indices
        allowed = torch.full_like(ranked, -torch.inf).index_copy(0, best, ranked[best]).flatten()
        assert set(experts.tolist()) == set(allowed.topk(2).indices.tolist())
        expected = own[experts] / own[experts].sum() * shape.routed_scaling_factor
        torch.testing.assert_close(weights[row], expected)
    assert gate.load.tolist() == torch.bincount(chosen.flatten(), minlength=shape.num_experts).tolist()


def test_long_prompts_reach_as_far_as_the_context_and_keep_their_blocks(encoder) -> None:
    noiser = Noiser(encoder, NoiseRecipe(far=1.0), 3)
    stream = batches(Documents(encoder, {"tool_answer": 1.0, "add": 1.0}, "s"), noiser, 20, 1024, encoder.eos)
    batch = next(stream)
    moved = 0
    for row in range(20):
        for number in range(batch.docs[row].max() + 1):
            own = batch.docs[row] == number
            positions, size = batch.positions[row][own], 32
            assert positions.max() < CONTEXT
            starts = np.flatnonzero(np.diff(np.unique(positions)) > 1)
            assert len(starts) <= 1
            moved += len(starts)
            if len(starts):
                assert np.unique(positions)[starts[0] + 1] % size == 0
    assert moved >= 10


def test_noise_leaves_prompts_alone_and_losses_fall_on_answers(encoder) -> None:
    stream = Documents(encoder, {"add": 1.0, "json": 1.0, "long_add": 1.0, "table": 1.0}, "n")
    noiser = Noiser(encoder, NoiseRecipe(corrupt=0.5, hole=0.3, block_weights=(0.3, 0.3, 0.4)), 0)
    packer, packed, layout = Packer(encoder.eos, 384), [], None
    while layout is None:
        prompt, answer = next(stream)
        packed.append((prompt, answer))
        packer.add(prompt, answer, noiser.block_size())
        layout = packer.take(30)
    batch = noiser(layout, 384)
    weights = np.zeros(30 * 384)
    weights[batch.index] = batch.weights
    targets = np.full(30 * 384, -1)
    targets[batch.index] = batch.targets
    kinds = {"masked": 0, "replaced": 0, "kept": 0, "filling": 0, "unlearnt": 0}
    seen = set()
    for row in range(30):
        for number in range(batch.docs[row].max() + 1):
            own = batch.docs[row] == number
            noised, positions, ids = batch.noised[row][own], batch.positions[row][own], batch.ids[row][own]
            loss, target = weights.reshape(30, 384)[row][own], targets.reshape(30, 384)[row][own]
            rebuilt = dict(zip(positions[~noised].tolist(), ids[~noised].tolist(), strict=True))
            known = np.where(loss > 0, target, ids)
            rebuilt |= dict(zip(positions[noised].tolist(), known[noised].tolist(), strict=True))
            text = [rebuilt[p] for p in range(len(rebuilt))]
            matching = [k for k, (p, a) in enumerate(packed) if text[: len(p + a)] == p + a and k not in seen]
            prompt, answer = packed[matching[0]]
            seen.add(matching[0])
            end = len(prompt) + len(answer)
            assert text[end:] == [encoder.eos] * (len(text) - end)
            assert len(text) % (size := int(noised.sum() // len(set(batch.blocks[row][own & batch.noised[row]])))) == 0
            assert positions[noised][0] == len(prompt) // size * size
            assert (batch.blocks[row][own] == positions // size).all()
            assert (~noised).sum() == len(text) - size
            assert (loss[(positions < len(prompt)) | ~noised] == 0).all()
            wrong = noised & (ids != known)
            kinds["masked"] += int((ids == encoder.mask).sum())
            kinds["replaced"] += int((wrong & (ids != encoder.mask)).sum())
            kinds["kept"] += int(((loss > 0) & ~wrong).sum())
            kinds["filling"] += int((loss[positions >= end] > 0).sum())
            kinds["unlearnt"] += int((loss[noised & (positions >= len(prompt))] == 0).sum())
    assert all(kinds.values()), kinds
    assert len(seen) == len(layout.sizes)


def test_the_exported_model_is_the_trained_one(encoder, tmp_path) -> None:
    model = make()
    export(model.state_dict(), TINY, encoder.tokenizer, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert {f.name: config[f.name] for f in dataclasses.fields(Shape)} == dataclasses.asdict(TINY)
    tensors = load_file(tmp_path / "model.safetensors")
    assert tensors["model.layers.1.mlp.experts.7.down_proj.weight"].shape == (32, 16)
    assert tensors["model.layers.0.attention.query_key_value.weight"].shape == (64, 32)
    assert {t.dtype for n, t in tensors.items() if not n.endswith("expert_bias")} == {torch.bfloat16}
    ids = torch.randint(0, 1000, (21,))
    expected = OracleModel(config, tensors).logits(ids.tolist())
    rounded = make()
    state = rounded.state_dict()
    rounded.load_state_dict({n: (t if n.endswith("expert_bias") else t.bfloat16().float()) for n, t in state.items()})
    logits = rounded.lm_head(rounded(ids.unsqueeze(0), torch.arange(21).unsqueeze(0), block_causal(21, 8)))[0]
    torch.testing.assert_close(logits.double(), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_presets_have_the_size_of_the_shipped_model_and_rows_for_every_document(name, encoder) -> None:
    preset = PRESETS[name]
    tensors = checkpoint_tensors(DemoModel(preset.shape).state_dict())
    assert sum(t.numel() * t.element_size() for t in tensors.values()) <= 15e6
    packer = Packer(encoder.eos, preset.row_length)
    documents = Documents(encoder, preset.tasks, "long")
    for _ in range(3000):
        packer.add(*next(documents), size=32)  # raises ValueError if a document does not fit


def test_bfloat16_autocast_gives_nearly_the_same(encoder) -> None:
    model = make()
    ids = torch.randint(0, 1000, (2, 24))
    positions = torch.arange(24).expand(2, -1)
    exact = model(ids, positions, block_causal(24, 8))
    with torch.autocast("cpu", torch.bfloat16):
        rounded = model(ids, positions, block_causal(24, 8))
    assert rounded.dtype == torch.bfloat16
    assert torch.nn.functional.cosine_similarity(exact, rounded.float(), dim=-1).min() > 0.98


def test_orthogonalized_updates_have_even_singular_values() -> None:
    torch.manual_seed(0)
    for shape in ((24, 24), (3, 16, 40), (3, 40, 16)):
        values = torch.linalg.svdvals(orthogonalize(torch.randn(shape)))
        assert values.max() < 1.3
        assert values.median() > 0.6


def test_the_few_pass_norm_has_the_right_value_and_gradients() -> None:
    torch.manual_seed(0)
    x = torch.randn(5, 3, 6, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(3, 6, dtype=torch.float64, requires_grad=True)
    expected = torch.nn.functional.rms_norm(x, (6,), None, 1e-6) * weight
    torch.testing.assert_close(FewPassNorm.apply(x, weight, 1e-6), expected)
    assert torch.autograd.gradcheck(lambda a, b: FewPassNorm.apply(a, b, 1e-6), (x, weight))

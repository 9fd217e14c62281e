"""Tests of `final_hidden_states`: it computes what follows the last attention, and can do so for selected rows only."""

import pytest
import torch

from runtime.bench.model_shapes import architecture, random_model
from runtime.layers.layer_factory import LayerFactory
from tests.models.paged import make_batch, page_tables, poisoned_pool

SHAPES = {
    "experts": {},
    "without experts": {"num_hidden_layers": 1},  # the first layer has none
    "experts that a block shares": {"expert_capacity": 4, "n_group": 1, "topk_group": 1},
}


@pytest.mark.parametrize("shape", SHAPES)
def test_final_hidden_states_are_computed_per_row(shape):
    model = random_model(architecture("llada2-tiny") | SHAPES[shape], LayerFactory.create("cpu", torch.float64))
    random = torch.Generator().manual_seed(1)
    ids = torch.randint(0, 90, (64,), generator=random).tolist()
    tables, pages = page_tables([64], 32, random)
    pool = poisoned_pool(model, pages, 32, torch.float64, "cpu", "unified")
    batch = make_batch([(ids, 0, 64)], tables, block_size=32, page_size=32)
    left = model.forward(model.embed(batch.tokens), batch, pool)
    hidden_states = model.final_hidden_states(left)
    assert model.split_last_layer == (not model.routing_block)
    # with routing per block, `forward` has computed this for all rows
    assert torch.equal(hidden_states, left) != model.split_last_layer
    some = torch.randperm(64, generator=random)[:11]
    torch.testing.assert_close(model.final_hidden_states(left[some]), hidden_states[some], rtol=1e-12, atol=1e-12)

"""Tests of checkpoints served with d2f, fast_dllm_v2 and nemotron_diffusion: defaults."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from runtime import LLM, SamplingParams
from tests.golden import GOLDEN
from tests.oracle.block import Params, Shape
from tests.oracle.llama_like import TransformersOracle, tensors_of, write
from tests.oracle.seeded import decode_seeded
from tests.oracle.spelling import config_of, spelt


def load(folder: str, **flags: object) -> LLM:
    return LLM(str(GOLDEN / folder), device="cpu", skip_tokenizer=True, **flags)


@dataclass(frozen=True)
class FullForward:
    """The transformers model with the interface of the oracle's cache. It forwards full sequences without a cache."""

    model: TransformersOracle

    def forward(self, first: int, ids: Sequence[int], ends: Sequence[int]) -> np.ndarray:
        assert first == 0
        visible = torch.arange(len(ids)) < torch.tensor(ends)[:, None]
        return self.model.masked_logits(ids, visible).double().numpy()


def test_nemotron_diffusion_equals_transformers(tmp_path):
    config = config_of("nemotron_diffusion")
    tensors = tensors_of("nemotron_diffusion", config, seed=11)
    write(tmp_path / "ours", config, spelt("nemotron_diffusion", tensors))
    oracle = TransformersOracle(tmp_path / "theirs", "nemotron_diffusion", config, tensors)
    random = np.random.default_rng(4)
    prompts = [random.integers(0, 39, length).tolist() for length in (1, 5, 8, 13, 30)]
    flags = {"block_size": 8, "page_size": 4, "max_num_batched_tokens": 24, "mask_token_id": 39, "eos_token_ids": [3]}
    with LLM(str(tmp_path / "ours"), device="cpu", skip_tokenizer=True, **flags) as llm:
        assert (llm.info.strategy, llm.info.buffer_size) == ("nemotron_diffusion", 1)
        shape = Shape(8, 1, 39, frozenset([3]), llm.info.max_token_id, from_prompt=True)
        for ignore_eos in (True, False):
            asked = {"max_tokens": 21, "ignore_eos": ignore_eos}
            sampling = SamplingParams(**asked, temperature=0, decoding={"accept_threshold": 0.5})
            for prompt, out in zip(prompts, llm.generate(prompts, sampling), strict=True):
                p = Params(**asked, accept_threshold=0.5, max_steps_per_block=16)
                decoded = decode_seeded(lambda: FullForward(oracle), prompt, p, shape)
                assert (out.token_ids, out.nfe, out.finish_reason) == (
                    decoded.tokens,
                    decoded.nfe,
                    decoded.finish_reason,
                )


def defaults(llm: LLM) -> dict[str, object]:
    return dict(llm.info.defaults("threshold").values)


def test_defaults_of_d2f_on_dream():
    with load("d2f_dream", decoding_strategy="d2f") as llm:
        assert (llm.info.buffer_size, llm.info.prefix_caching) == (4, False)
        values = defaults(llm)
        assert (values["semi_complete_threshold"], values["add_block_threshold"]) == (0.95, 0.1)
        assert values["accept_threshold"] == 0.9
        answers = llm.generate([[5, 6, 7]] * 2, SamplingParams(max_tokens=33, ignore_eos=True, temperature=0))
        assert len({tuple(out.token_ids) for out in answers}) == 1
    flags = {"buffer_size": 2, "accept_threshold": 0.8, "semi_complete_threshold": 0.5}
    with load("d2f_dream", decoding_strategy="d2f", max_num_reqs=1, **flags) as llm:
        values = defaults(llm)
        assert (llm.info.buffer_size, values["accept_threshold"], values["semi_complete_threshold"]) == (2, 0.8, 0.5)


def test_fields_of_fast_dllm_v2_and_fixed():
    with load("fast_dllm_v2", mask_token_id=225) as llm:
        values = defaults(llm)
        assert (values["sub_block_size"], values["block_cache"], values["accept_threshold"]) == (8, False, 0.9)

        def answer(**params):
            return llm.generate([[5, 6, 7]], SamplingParams(temperature=0, ignore_eos=True, **params))[0]

        # The answer, positions 3 to 63, is in sub-blocks 0 to 7 of 8 positions. A forward that seeds is no step.
        assert answer(max_tokens=61, num_denoising_steps=17).nfe == 17
        assert answer(max_tokens=61, num_denoising_steps=4, decoding={"sub_block_size": 16}).nfe == 4

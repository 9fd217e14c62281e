"""Tests of RND1's published decoding rule, with its model in transformers and a naive sampler."""

import torch

from runtime import LLM, SamplingParams
from tests.models.tiny import write_random
from tests.oracle.llama_like import TransformersOracle, tensors_of
from tests.oracle.spelling import config_of

MASK = 39


def published(oracle, prompt, length, steps):
    """Returns the answer of `length` tokens, greedy.

    All positions see each other. Row i predicts position i + 1. Of M masks, those with the highest entropy stay masked:
    floor(M * (1 - i / steps)) of them after step i.
    """
    ids, masked = [*prompt, *[MASK] * length], set(range(len(prompt), len(prompt) + length))
    for step in range(1, steps + 1):
        rows = oracle.logits(ids, block=len(ids)).double()
        rows[:, MASK] = -torch.inf
        logs = rows.log_softmax(-1)
        entropy = -(logs.exp() * logs.nan_to_num(neginf=0.0)).sum(-1)
        stays = sorted(masked, key=lambda position: -entropy[position - 1])[: length * (steps - step) // steps]
        for position in masked - set(stays):
            ids[position] = int(rows[position - 1].argmax())
        masked = set(stays)
    return ids[len(prompt) :]


def test_answers_are_those_of_the_published_rule(tmp_path):
    config, seed = config_of("rnd1", eos_token_id=None), 6
    write_random("rnd1", tmp_path / "ours", seed, eos_token_id=None)
    oracle = TransformersOracle(tmp_path / "theirs", "rnd1", config, tensors_of("rnd1", config, seed))
    fixed = {"algorithm": "fixed"}
    with LLM(str(tmp_path / "ours"), device="cpu", skip_tokenizer=True) as llm:
        assert (llm.info.family, llm.info.strategy, llm.info.mask_token_id) == ("rnd1", "full", MASK)
        differing = 0
        for prompt, length, steps in (([5, 6, 7], 12, 12), ([9], 13, 5), ([3, 1, 4, 1, 5], 10, 4), ([8, 2], 7, 3)):
            params = {"max_tokens": length, "temperature": 0.0, "ignore_eos": True}
            spread = fixed | {"steps": steps, "block_length": length}
            (answer,) = llm.generate([prompt], SamplingParams(**params, decoding=spread))
            assert list(answer.token_ids) == published(oracle, prompt, length, steps)
            assert answer.nfe == steps
            (first,) = llm.generate([prompt], SamplingParams(**params, decoding=spread | {"step_remainder": "first"}))
            differing += list(first.token_ids) != list(answer.token_ids)
        assert differing, "no case tells the two remainders apart"

"""Tests of Tiny-A2D: the two kinds of checkpoints, their decoding rule, and the default of their chat template."""

import asyncio

import pytest
from starlette.requests import Request

from runtime import LLM, SamplingParams
from runtime.errors import ConfigError
from runtime.server.serving.chat import ChatPrompt
from runtime.server.serving.preprocessor import Preprocessor
from tests.models.tiny import write_random
from tests.oracle.llama_like import TransformersOracle, tensors_of
from tests.oracle.spelling import config_of
from tests.tokenizer.conftest import byte_level, save

MASK, BLOCK = 39, 4
FAMILIES = ("a2d_qwen3", "a2d_qwen2")
TEMPLATE = "{{ messages[0].content }}{% if enable_thinking is defined and not enable_thinking %}<|end|>{% endif %}"


def naive(oracle, prompt, length, kind):
    """Returns the answer, greedy, one position per step: the most probable masked one of the first block with masks."""
    ids = [*prompt, *[MASK] * length]
    first = 0 if kind == "bd3lm" else len(prompt)  # where blocks begin
    for start in range(first, len(ids), BLOCK):
        end = min(start + BLOCK, len(ids)) if kind == "mdlm" else start + BLOCK
        seen = ids if kind == "mdlm" else [*ids, *[MASK] * (end - len(ids))][:end]
        masked = [n for n in range(start, end) if n >= len(prompt)]
        while masked:
            rows = oracle.logits(seen, block=BLOCK if kind == "bd3lm" else len(seen)).double()
            rows[:, MASK] = float("-inf")
            probabilities, tokens = rows.softmax(-1).max(-1)
            best = max(masked, key=lambda n: float(probabilities[n]))
            seen[best] = int(tokens[best])
            masked.remove(best)
        ids[start:end] = seen[start:end]
    return ids[len(prompt) : len(prompt) + length]


@pytest.mark.parametrize("kind", ["bd3lm", "mdlm"])
@pytest.mark.parametrize("family", FAMILIES)
def test_answers_of_both_kinds(tmp_path, family, kind):
    directory = write_random(family, tmp_path / f"Tiny-diffusion-{kind}-v0.1", 5)
    config = config_of(family)
    oracle = TransformersOracle(tmp_path / "theirs", family, config, tensors_of(family, config, 5))
    flags = {"block_size": BLOCK, "mask_token_id": MASK, "skip_tokenizer": True, "device": "cpu"}
    with LLM(str(directory), **flags) as llm:
        assert llm.info.strategy == {"bd3lm": "multi_bd", "mdlm": "full"}[kind]
        for prompt, length in (([5, 6, 7, 8, 9], 10), ([3, 1], 8), ([4, 1, 2, 6], 7)):
            params = SamplingParams(
                max_tokens=length, temperature=0.0, ignore_eos=True, decoding={"algorithm": "fixed"}
            )
            (answer,) = llm.generate([prompt], params)
            assert list(answer.token_ids) == naive(oracle, prompt, length, kind)


@pytest.mark.parametrize(
    ("name", "origin", "flag", "strategy"),
    [
        ("Qwen3-0.6B-diffusion-bd3lm-v0.1", None, None, "multi_bd"), ("mine_MDLM", None, None, "full"),
        ("model", "dllm-hub/Qwen3-0.6B-diffusion-mdlm-v0.1", None, "full"),
        ("tuned-bd3lm", "dllm-hub/Qwen3-0.6B-diffusion-mdlm-v0.1", None, "multi_bd"),
        ("mdlm-or-bd3lm", "org/x-bd3lm", None, "multi_bd"), ("mdlm-x", None, "multi_bd", "multi_bd"),
        ("model", None, "full", "full"), ("model", None, None, None), ("rmdlmx", None, None, None),
        ("mdlm-or-bd3lm", None, None, None), ("model", "mdlm-hub/qwen", None, None),
    ],
)  # fmt: skip
def test_the_name_of_the_repository_tells_the_strategy(tmp_path, name, origin, flag, strategy):
    """With the wrong one, answers would be nonsense, so there is no default."""
    directory = write_random("a2d_qwen3", tmp_path / name, _name_or_path=origin)
    flags = {"mask_token_id": MASK, "skip_tokenizer": True, "device": "cpu", "decoding_strategy": flag}
    if strategy is None:
        with pytest.raises(ConfigError, match=r"set --decoding-strategy to multi_bd \(bd3lm\) or full \(mdlm\)"):
            LLM(str(directory), **flags)
        return
    with LLM(str(directory), **flags) as llm:
        assert (llm.info.strategy, llm.info.block_size) == (strategy, 32)


@pytest.mark.parametrize("family", FAMILIES)
def test_chats_do_not_reason_unless_a_request_says_so(tmp_path, family):
    directory = write_random(family, tmp_path / "bd3lm", vocab_size=330)
    save(byte_level(), directory, template=TEMPLATE)
    messages = [{"role": "user", "content": "Solve"}]
    with LLM(str(directory), device="cpu") as llm:
        text, mark = llm.tokenizer.encode("Solve"), [llm.tokenizer.token_id("<|end|>")] * (family == "a2d_qwen3")
        assert llm.info.mask_token_id == llm.tokenizer.token_id("<|mask|>")
        greedy = SamplingParams(max_tokens=4, temperature=0.0)
        for says, prompt in ((None, text + mark), ({"enable_thinking": True}, text), ({"x": 1}, text + mark)):
            (expected,) = llm.generate([prompt], greedy)
            (chat,) = llm.chat(messages, greedy, chat_template_kwargs=says)
            assert (chat.token_ids, chat.usage) == (expected.token_ids, expected.usage)
            preparer = Preprocessor(lambda llm=llm: (llm.info, llm.tokenizer))
            ask = ChatPrompt(messages, says or {})
            ids = asyncio.run(preparer.encode_chat(Request({"type": "http"}), ask))
            assert ids == prompt
        assert llm.generate([messages], greedy)[0].usage["prompt_tokens"] == len(text + mark)

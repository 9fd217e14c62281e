"""Tests of the Python API (docs/get-started/laptop.md#without-a-server) with token ids on the golden checkpoint.

Tests of the demo model cover text.
"""

import gc
import weakref
from dataclasses import replace

import pytest
import torch

from runtime import LLM, SamplingParams
from runtime.errors import ConfigError, RequestError
from runtime.worker.model_runner import ModelRunner
from tests.golden import GOLDEN
from tests.oracle.tiny import write_tiny


@pytest.fixture(scope="module", params=[False, True], ids=["at once", "held"])
def llm(request):
    """Yields an LLM that reports outputs after each step, or (param True) during the next step."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param:
            patch.setattr(ModelRunner, "overlaps", True)
        with LLM(str(GOLDEN / "llada2_tiny"), device="cpu", dtype="float64", skip_tokenizer=True) as llm:
            yield llm


def params(**changes):
    return SamplingParams(**{"max_tokens": 12, "ignore_eos": True, "decoding": {"accept_threshold": 0.02}, **changes})


def test_outputs_keep_the_order_of_the_prompts_whichever_ends_first(llm):
    prompts = [[1, 2, 3], [4] * 20, [9, 8]]
    outs = llm.generate(prompts, [params(max_tokens=30), params(max_tokens=3), params(max_tokens=9)])
    assert [len(out.token_ids) for out in outs] == [30, 3, 9]
    assert [out.usage["prompt_tokens"] for out in outs] == [3, 20, 2]
    assert all(out.text is None and out.finish_reason == "length" and out.nfe > 0 for out in outs)
    alone = [llm.generate([prompt], params(max_tokens=n))[0] for prompt, n in zip(prompts, [30, 3, 9], strict=True)]
    assert [out.token_ids for out in alone] == [out.token_ids for out in outs]


def test_a_stream_has_the_same_answer_step_by_step(llm):
    prompt = [5, 6, 7, 8, 9]
    events = list(llm.stream(prompt, params()))
    *steps, final = events
    (out,) = llm.generate([prompt], params())
    assert final["event"] == "final"
    assert final["token_ids"] == out.token_ids
    assert [event["nfe"] for event in steps] == list(range(1, out.nfe + 1))
    full = prompt + out.token_ids
    for event in steps:
        for offset, token in enumerate(event["tokens"]):
            at = event["start"] + offset
            if offset in event["masked"]:
                assert token == llm.info.mask_token_id
            elif at < len(full):
                assert token == full[at]


def test_each_choice_samples_with_its_own_seed(llm):
    hot = params(temperature=5.0, seed=7, n=3)
    (out,) = llm.generate([[1, 2, 3]], hot)
    assert out.choices[0].token_ids == out.token_ids
    assert len({tuple(choice.token_ids) for choice in out.choices}) == 3
    (second,) = llm.generate([[1, 2, 3]], params(temperature=5.0, seed=8))
    assert second.token_ids == out.choices[1].token_ids


def test_a_top_p_of_0_is_a_top_k_of_1(llm):
    hot = params(temperature=5.0, max_tokens=30, seed=7)
    least, top, other = (
        llm.generate([[1, 2, 3]], replace(hot, **each))[0] for each in ({"top_p": 0}, {"top_k": 1}, {})
    )
    assert least.token_ids == top.token_ids != other.token_ids


def test_a_call_with_an_invalid_prompt_runs_nothing(llm):
    with pytest.raises(RequestError) as error:
        llm.generate([[1, 2], [1, 256]], params())
    assert error.value.param == "prompt[1]"
    assert not llm.engine.has_work()


@pytest.mark.parametrize("prompt", ["text", [{"role": "user", "content": "hi"}]])
def test_without_a_tokenizer_text_is_refused(llm, prompt):
    with pytest.raises(RequestError, match="tokenizer"):
        llm.generate([prompt], params())


def test_a_closed_stream_frees_its_pages(llm):
    events = llm.stream([1] * 40, params(max_tokens=40))
    next(events)
    events.close()
    assert not llm.engine.has_work()
    assert llm.engine.stats().pages_used == 0


def test_calls_of_one_llm_may_interleave(llm):
    """Each call steps the engine for all calls. A call must not consume the outputs of another one."""
    prompts, lengths = [[1, 2, 3], [4] * 11, [7, 7]], [30, 9, 17]
    alone = [llm.generate([prompt], params(max_tokens=n))[0] for prompt, n in zip(prompts, lengths, strict=True)]
    streams = [llm.stream(prompt, params(max_tokens=n)) for prompt, n in zip(prompts, lengths, strict=True)]
    finals, open_streams = {}, dict(enumerate(streams))
    while open_streams:
        for i in list(open_streams):
            event = next(open_streams[i])
            if event["event"] == "final":
                finals[i] = event["token_ids"]
                del open_streams[i]
        if len(finals) == 1:
            (between,) = llm.generate([prompts[0]], params(max_tokens=30))
            assert between.token_ids == alone[0].token_ids
    assert [finals[i] for i in range(3)] == [out.token_ids for out in alone]


def test_closing():
    llm = LLM(str(GOLDEN / "llada2_tiny"), device="cpu", skip_tokenizer=True, max_model_len=64)
    llm.generate([[1] * 8], params(max_tokens=8))  # leaves a block whose KV is not cached yet
    events = llm.stream([1, 2, 3], params())
    next(events)
    llm.close()
    llm.close()
    with pytest.raises(RuntimeError, match="closed"):
        next(events)
    with pytest.raises(RuntimeError, match="closed"):
        llm.generate([[1]])


def test_logits_do_not_depend_on_the_content_of_the_cache(llm):
    ids = torch.randint(0, 250, (21,), generator=torch.Generator().manual_seed(3)).tolist()
    before = llm.logits(ids)
    llm.generate([ids], params())
    assert torch.equal(before, llm.logits(ids))
    assert before.shape == (21, 256)
    longer = llm.logits([*ids, 7, 7, 7, 7])  # 21 ends inside a block of 8: only complete blocks are unchanged
    assert torch.allclose(before[:16], longer[:16])


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda llm: llm.generate([1, 2, 3], params()), "prompt"),
        (lambda llm: llm.generate([{"role": "user", "content": "hi"}], params()), "prompt"),
        (lambda llm: llm.generate({"prompt": "hi"}, params()), "prompt"),
        (lambda llm: next(llm.stream([1], params(), stream_mode="blocks")), "stream_mode"),
        (lambda llm: next(llm.stream([1], params(n=2))), "n"),
        (lambda llm: llm.generate([[1], [2]], [params()]), "params"),
        (lambda llm: llm.logits([]), "prompt"),
        (lambda llm: llm.logits([1, 256]), "prompt[1]"),
        (lambda llm: llm.logits([1, 2.0]), "prompt[1]"),
        (lambda llm: llm.logits([1], block_size=0), "block_size"),
        (lambda llm: llm.logits([1], block_size="8"), "block_size"),
    ],
)
def test_wrong_arguments_are_named(llm, call, field):
    with pytest.raises(RequestError) as error:
        call(llm)
    assert error.value.param == field
    assert str(error.value).startswith(field)
    assert not llm.engine.has_work()


@pytest.mark.parametrize("block_size", ["8", -8, 8.5, [8], True])
def test_a_wrong_block_size_in_the_checkpoint_ends_start_up(tmp_path, block_size):
    write_tiny(tmp_path, seed=1, block=block_size)
    with pytest.raises(ConfigError, match=r"config\.json: block_size"):
        LLM(str(tmp_path), device="cpu", skip_tokenizer=True)


def test_the_token_budget_must_hold_a_step(tmp_path):
    write_tiny(tmp_path, seed=1, block=64)
    with pytest.raises(ConfigError, match="--max-num-batched-tokens: 100 is less than the 128 rows"):
        LLM(str(tmp_path), device="cpu", skip_tokenizer=True, max_num_batched_tokens=100, page_size=64)


def test_server_flags_and_misspelled_flags_are_refused():
    with pytest.raises(ConfigError, match="port"):
        LLM(port=1)
    with pytest.raises(ConfigError, match="blok_size"):
        LLM(blok_size=8)


@pytest.mark.parametrize("overlaps", [False, True])
@pytest.mark.parametrize("grammar", [None, {"regex": "[ab]{2}"}], ids=["text", "grammar"])
def test_the_last_reference_frees_model_and_cache(grammar, overlaps, monkeypatch):
    """Checks this without the garbage collector, which may run long after the memory is needed again."""
    monkeypatch.setattr(ModelRunner, "overlaps", overlaps)
    sampling = SamplingParams(max_tokens=8, structured_outputs=grammar)
    gc.collect()
    gc.disable()
    try:
        llm = LLM(device="cpu", num_pages=256)
        llm.generate(["a"], sampling)
        runner = weakref.ref(llm.engine.runner)
        del llm
        assert runner() is None
    finally:
        gc.enable()

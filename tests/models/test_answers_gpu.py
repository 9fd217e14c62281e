"""Tests of the answers of every strategy on the GPU in float32, token by token."""

import pytest

from runtime import LLM, SamplingParams
from tests.golden import GOLDEN
from tests.models.golden_answers import cases, check_answer, llms

pytestmark = pytest.mark.gpu  # selected by this marker only, so that a missing device is a failure and no skip
DEVICE = {"device": "cuda", "dtype": "float32", "num_pages": 512}  # few, because other processes may use the GPU
PROMPTS = [[5, 6, 7], [9, 8, 7, 6, 5, 4, 3, 9, 8], list(range(20, 53))]


@pytest.fixture(scope="module")
def llm_of():
    with llms(**DEVICE) as get:
        yield get


@pytest.mark.parametrize(("folder", "case"), cases("decode"))
def test_golden_answers(llm_of, folder, case):
    check_answer(llm_of(folder, case), case)


def answers(folder, flags):
    asked = [SamplingParams(max_tokens=40, ignore_eos=True, temperature=t, seed=3) for t in (0, 1.0, 0.7)]
    with LLM(str(GOLDEN / folder), skip_tokenizer=True, **flags) as llm:
        return [(out.token_ids, out.nfe) for out in llm.generate(PROMPTS, asked)]


@pytest.mark.parametrize("folder", ["diffusion_gemma", "llada2dot2", "llada2_tiny", "d2f_dream"])
@pytest.mark.parametrize("layout", ["unified", "distinct"])
def test_a_batch_equals_the_cpus(folder, layout):
    assert answers(folder, DEVICE | {"kv_cache_layout": layout}) == answers(folder, {"device": "cpu"})

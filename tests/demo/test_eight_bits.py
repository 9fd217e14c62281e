"""The shipped checkpoint in eight bits does what its card says, as in `test_checkpoint.py`: a few tasks here, and all
of them by name."""

import pytest

from runtime import LLM, SamplingParams
from runtime.demo.tasks import all_tasks, held_out_samples
from tests.demo.test_checkpoint import COUNT, WRONG

QUICK = {"add", "sort", "json", "dialogue", "sudoku"}
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
TASKS = [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in sorted(all_tasks())]


@pytest.fixture(scope="module", params=DEVICES)
def llm(request):
    pages = {"num_pages": 2048} if request.param == "cuda" else {}  # others run beside it: no pool by what is free
    with LLM(device=request.param, max_num_reqs=48, quantization="fp8", **pages) as model:
        yield model


def test_it_is_told(llm):
    assert llm.info.quantization == "fp8"
    assert llm.info.dtype == {"cpu": "float32", "cuda": "bfloat16"}[llm.info.device.split(":")[0]]


@pytest.mark.parametrize("name", TASKS)
def test_accuracy_stays(llm, name):
    task = all_tasks()[name]
    samples = held_out_samples(task, COUNT)
    params = SamplingParams(max_tokens=200, temperature=0.0, decoding={"mode": "quality"})
    outs = llm.generate([s.messages for s in samples], params)
    wrong = [o.text for s, o in zip(samples, outs, strict=True) if not task.check(s, o.text)]
    assert len(wrong) <= WRONG, wrong

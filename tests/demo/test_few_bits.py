"""The shipped checkpoint in few bits does what its card says, as in `test_checkpoint.py`: a few tasks here, and all of
them by name. Four bits may cost two points."""

import pytest

from runtime import LLM, SamplingParams
from runtime.bench.accuracy import MAX_TOKENS
from runtime.demo.tasks import all_tasks, held_out_samples
from tests.demo.test_checkpoint import COUNT, most_wrong

QUICK = {"fp8": {"add", "sort", "json", "dialogue", "sudoku"}, "int8": {"add"}, "int4": {"sort"}}
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
TASKS = [
    pytest.param(form, name, marks=() if name in quick else pytest.mark.slow)
    for form, quick in QUICK.items()
    for name in sorted(all_tasks())
]


@pytest.fixture(scope="module", params=DEVICES)
def llms(request):
    """One for each format, made when it is asked for."""
    pages = {"num_pages": 2048} if request.param == "cuda" else {}  # others run beside it: no pool by what is free
    made: dict[str, LLM] = {}

    def of(form: str) -> LLM:
        if form not in made:
            made[form] = LLM(device=request.param, max_num_reqs=48, quantization=form, **pages)
        return made[form]

    yield of
    for llm in made.values():
        llm.close()


@pytest.mark.parametrize("form", QUICK)
def test_it_is_told(llms, form):
    info = llms(form).info
    assert info.quantization == form
    assert info.dtype == {"cpu": "float32", "cuda": "bfloat16"}[info.device.split(":")[0]]


@pytest.mark.parametrize(("form", "name"), TASKS)
def test_accuracy_stays(llms, form, name):
    task = all_tasks()[name]
    samples = held_out_samples(task, COUNT)
    params = SamplingParams(max_tokens=MAX_TOKENS, temperature=0.0, decoding={"mode": "quality"})
    outs = llms(form).generate([s.messages for s in samples], params)
    wrong = [o.text for s, o in zip(samples, outs, strict=True) if not task.check(s, o.text)]
    assert len(wrong) <= most_wrong(task) + (form == "int4"), wrong

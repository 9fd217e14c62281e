"""Tests that the quantized demo checkpoint has the accuracy of `test_checkpoint.py`. int4 may cost two points.

`make test` checks one format, `make test-rest` the others and more tasks, `make test-slow` all tasks."""

import itertools

import pytest

from runtime import LLM, SamplingParams
from runtime.bench.accuracy import MAX_TOKENS
from runtime.demo.tasks import all_tasks, held_out_samples
from tests.demo.test_checkpoint import COUNT, max_wrong

FORMS = [pytest.param(form, marks=() if form == "fp8" else pytest.mark.matrix) for form in ("fp8", "int8", "int4")]
QUICK = {("fp8", "add")}
MATRIX = {("fp8", "sort"), ("fp8", "json"), ("fp8", "dialogue"), ("fp8", "sudoku"), ("int8", "add"), ("int4", "sort")}
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def _mark(case):
    return () if case in QUICK else pytest.mark.matrix if case in MATRIX else pytest.mark.slow


CASES = itertools.product(("fp8", "int8", "int4"), sorted(all_tasks()))
TASKS = [pytest.param(*case, marks=_mark(case)) for case in CASES]


@pytest.fixture(scope="module", params=DEVICES)
def llms(request):
    """Yields a function that returns the LLM of a format, which is created at the first call."""
    pages = {"num_pages": 2048} if request.param == "cuda" else {}  # other processes may use the GPU
    made: dict[str, LLM] = {}

    def of(form: str) -> LLM:
        if form not in made:
            made[form] = LLM(device=request.param, max_num_reqs=48, quantization=form, **pages)
        return made[form]

    yield of
    for llm in made.values():
        llm.close()


@pytest.mark.parametrize("form", FORMS)
def test_the_format_is_reported(llms, form):
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
    assert len(wrong) <= max_wrong(task) + (form == "int4"), wrong

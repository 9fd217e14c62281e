"""Tests that the shipped checkpoint, also quantized, has the accuracy of its card. Errors of decoding lower it.

`make test` runs one task in one format, `make test-rest` all tasks in float32 and some in other formats, and
`make test-slow` all tasks in all formats. int4 may cost two points.
"""

import itertools
import json
from pathlib import Path

import pytest

from runtime import LLM, SamplingParams
from runtime.bench.accuracy import run_task
from runtime.bench.held_out import Task, read_tasks

CHECKPOINT = Path(__file__).parents[2] / "runtime" / "demo" / "checkpoint"
TASKS = read_tasks()
# Of how many prompts how many may be wrong by chance. Short tasks have an accuracy of 98 %, long ones one of 90 %.
LIMITS = {"short": (24, 2), "long": (24, 3), "everyday": (60, 6), "claimed": (60, 4), "declined": (60, 3)}
ALL_WRITTEN = {"everyday": (300, 15), "claimed": (200, 10), "declined": (120, 6)}
MATRIX = {("fp8", "sort"), ("fp8", "json"), ("fp8", "dialogue"), ("fp8", "sudoku"), ("int8", "add"), ("int4", "sort")}
QUANTIZED = [
    pytest.param(form, name, marks=pytest.mark.matrix if (form, name) in MATRIX else pytest.mark.slow)
    for form, (name, task) in itertools.product(("fp8", "int8", "int4"), TASKS.items())
    if task.kind != "written" and (form, name) != ("fp8", "add")
]


@pytest.fixture(scope="module")
def llm():
    with LLM(device="cpu", max_num_reqs=48) as model:
        yield model


@pytest.fixture(scope="module", params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
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


def check_accuracy(llm: LLM, name: str, limit: tuple[int, int] | None = None, more: int = 0) -> None:
    task = TASKS[name]
    count, wrong = limit or LIMITS.get(name, LIMITS.get(task.kind))
    found = run_task(llm, Task(name, task.prompts[:count]), {"mode": "quality"}, count)
    assert found.right >= count - wrong - more, found.answers


@pytest.mark.matrix
@pytest.mark.parametrize("name", TASKS)
def test_accuracy(llm, name) -> None:
    check_accuracy(llm, name)


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL_WRITTEN)
def test_accuracy_of_all_prompts_that_people_wrote(llm, name) -> None:
    check_accuracy(llm, name, ALL_WRITTEN[name])


@pytest.mark.parametrize(("form", "name"), [("fp8", "add"), *QUANTIZED])
def test_quantized_accuracy(llms, form, name) -> None:
    info = llms(form).info
    assert (info.quantization, info.dtype) == (form, {"cpu": "float32", "cuda": "bfloat16"}[info.device.split(":")[0]])
    check_accuracy(llms(form), name, more=int(form == "int4"))


def test_a_conversation_that_changes_the_subject(llm) -> None:
    messages: list[dict[str, str]] = []
    for question, expected in (
        ("Hello!", "Hello! How can I help you?"),
        ("What can you do?", "I can add, subtract"),
        ("Solve: 12 + 30.", "12 + 30 = 42."),
        ("And times two?", "42 x 2 = 84."),
        ("Thank you!", "You are welcome"),
        ("Sort 9, 3, 5.", "3, 5, 9."),
        ("What is 120 + 300?", "120 + 300 = 420."),
        ("Spell giraffe.", "g-i-r-a-f-f-e."),
        ("Count from 7 to 23.", ", ".join(map(str, range(7, 24))) + "."),
        ("JSON for Bob, 25, from Paris", json.dumps({"name": "Bob", "age": 25, "city": "Paris"})),
        ("Order a pizza.", "Sorry, I cannot do that."),
        ("Goodbye!", "Goodbye!"),
    ):
        messages.append({"role": "user", "content": question})
        (out,) = llm.generate([messages], SamplingParams(max_tokens=128, temperature=0.0))
        assert (out.text.startswith(expected), out.finish_reason) == (True, "stop"), (messages, out.text)
        messages.append({"role": "assistant", "content": out.text})


def test_the_files_are_small_and_complete() -> None:
    sizes = {p.name: p.stat().st_size for p in CHECKPOINT.iterdir()}
    assert {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "README.md"} <= set(sizes)
    adapters = sum(p.stat().st_size for p in CHECKPOINT.parent.joinpath("adapters").rglob("*"))
    assert sum(sizes.values()) + adapters <= 16e6


@pytest.mark.matrix
def test_questions_after_a_long_chat_are_answered(llm) -> None:
    """They follow thousands of tokens of other turns, which nearly fill the context."""
    earlier = [p for name in ("count_far", "table", "units") for p in TASKS[name].prompts[:8]]
    turns = [text for prompt in earlier for text in (prompt.messages[0]["content"], prompt.answer)]
    messages = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(turns)]
    assert llm.info.max_model_len == 4096
    for question, expected in (("Solve: 12 + 30.", "12 + 30 = 42."), ("Spell giraffe.", "g-i-r-a-f-f-e."),
                               ("Tell me a story about a fox.", "fox")):  # fmt: skip
        asked = [*messages, {"role": "user", "content": question}]
        (out,) = llm.generate([asked], SamplingParams(max_tokens=256, temperature=0.0))
        assert 2500 < out.usage["prompt_tokens"] < 4096 - 256
        assert expected in out.text

"""The shipped checkpoint: what its card says it does, it does. An engine that decodes wrongly loses accuracy here."""

from pathlib import Path

import pytest

from runtime import LLM, SamplingParams
from runtime.demo.tasks import all_tasks, held_out_samples

CHECKPOINT = Path(__file__).parents[2] / "runtime" / "demo" / "checkpoint"
# The card says 99.6 % of 500 or more for every task in quality: of so many held-out prompts two may be wrong by chance.
COUNT, WRONG = 48, 2


@pytest.fixture(scope="module")
def llm():
    with LLM(device="cpu", max_num_reqs=48) as model:
        yield model


def ask(llm: LLM, *contents: str) -> str:
    messages = [{"role": ("user", "assistant")[i % 2], "content": c} for i, c in enumerate(contents)]
    (out,) = llm.generate([messages], SamplingParams(max_tokens=64, temperature=0.0))
    assert out.finish_reason == "stop"
    return out.text


def test_the_documented_questions(llm) -> None:
    assert ask(llm, "Solve: 12 + 30.") == "12 + 30 = 42."
    assert ask(llm, "Hello!") == "Hello! How can I help you?"
    assert ask(llm, "What can you do?").startswith("I can add, subtract")


def test_a_conversation_that_wanders(llm) -> None:
    said: list[str] = []
    for question, wanted in (
        ("Hello!", "Hello! How can I help you?"),
        ("What can you do?", "I can add, subtract"),
        ("Solve: 12 + 30.", "12 + 30 = 42."),
        ("And times two?", "42 x 2 = 84."),
        ("Thank you!", "You are welcome"),
        ("Sort 9, 3, 5.", "3, 5, 9."),
        ("What is 7 times 8?", "7 x 8 = 56."),
        ("Spell garden.", "g-a-r-d-e-n."),
        ("Order a pizza.", "Sorry, I cannot do that."),
        ("Goodbye!", "Goodbye!"),
    ):
        answer = ask(llm, *said, question)
        assert answer.startswith(wanted), (said, question, answer)
        said += [question, answer]


@pytest.mark.parametrize("name", sorted(all_tasks()))
def test_accuracy_stays(llm, name) -> None:
    task = all_tasks()[name]
    samples = held_out_samples(task, COUNT)
    params = SamplingParams(max_tokens=200, temperature=0.0, decoding={"mode": "quality"})
    outs = llm.generate([s.messages for s in samples], params)
    wrong = [o.text for s, o in zip(samples, outs, strict=True) if not task.check(s, o.text)]
    assert len(wrong) <= WRONG, wrong


def test_the_files_are_small_and_complete() -> None:
    sizes = {p.name: p.stat().st_size for p in CHECKPOINT.iterdir()}
    assert {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "README.md"} <= set(sizes)
    assert sum(sizes.values()) <= 12e6

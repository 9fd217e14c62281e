"""Tests of `LLM.decide` against one forward without a cache, whose logits at the labels are normalized."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from runtime import LLM, Question
from runtime.decisions.prompts import DecisionPrompts
from runtime.decisions.questions import Answer
from runtime.errors import RequestError
from tests.server.checkpoint import write_checkpoint

STATE = "The parcel is late. A."
QUESTIONS = [
    Question.predicate("Is it late?"), Question.choice("What is it?", {"parcel": "a box", "letter": None, "A": None}),
    Question.score("How late?", ["a day", "a week"]), Question.choice("One?", ["only"]), Question.predicate("Big?"),
]  # fmt: skip


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("tiny"))


def load(checkpoint: Path, **flags: Any) -> LLM:
    return LLM(str(checkpoint), **{"device": "cpu", "dtype": "float64", "block_size": 32, **flags})


@pytest.fixture(scope="module")
def llm(checkpoint: Path) -> Iterator[LLM]:
    with load(checkpoint) as llm:
        yield llm


@torch.inference_mode()
def recomputed(llm: LLM, *, joint: bool) -> list[Answer]:
    found: list[Answer] = []
    info = llm.info
    prompts = DecisionPrompts(llm.tokenizer, info, [{"role": "user", "content": STATE}], {})
    for read in prompts.reads(QUESTIONS, joint=joint):
        first, answer = len(read.prompt), [info.mask_token_id if id is None else id for id in read.template.tokens]
        answer += [info.mask_token_id] * (info.block_layout.total_len(first, len(answer)) - first - len(answer))
        logits = llm.logits(read.prompt + answer).double().clone()
        logits[:, info.mask_token_id] = logits[:, info.max_token_id + 1 :] = -torch.inf
        slots = [first + at for at, id in enumerate(read.template.tokens) if id is None]
        rows = logits.log_softmax(1)[slots]
        found += read.answers([[*row[read.ids].tolist(), row.max().item()] for row in rows])
    return found


def check(found: list[Answer], expected: list[Answer], tolerance: float = 1e-9) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.question.instructions == other.question.instructions
        assert one.probabilities == pytest.approx(other.probabilities, abs=tolerance)
        assert one.label_mass == pytest.approx(other.label_mass, abs=tolerance)
        assert one.argmax_is_label == other.argmax_is_label
        assert 0 <= one.confidence <= 1


@pytest.mark.parametrize("joint", [False, True])
def test_answers_equal_a_recomputation(llm: LLM, joint: bool) -> None:
    check(llm.decide(STATE, QUESTIONS, joint=joint), recomputed(llm, joint=joint))


def test_joint_answers_to_one_question_are_single(llm: LLM) -> None:
    for question in QUESTIONS:
        (alone,), (joint,) = llm.decide(STATE, [question]), llm.decide(STATE, [question], joint=True)
        check([alone], [joint], 0)


CHANGES: dict[str, dict[str, Any]] = {
    "small pages": {"page_size": 8, "block_size": 8}, "no prefix cache": {"disable_prefix_caching": True},
    "chunks": {"max_num_batched_tokens": 64}, "one at a time": {"max_num_reqs": 1},
    "two ranks": {"tensor_parallel_size": 2},
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_the_server_does_not_change_a_digit(checkpoint: Path, llm: LLM, change: str) -> None:
    flags = CHANGES[change]
    with load(checkpoint, **flags) as other:
        expected = recomputed(other, joint=False) if "block_size" in flags else llm.decide(STATE, QUESTIONS)
        check(other.decide(STATE, QUESTIONS), expected)
        check(other.decide(STATE, QUESTIONS), expected)  # now cached


def test_an_adapter(tmp_path: Path) -> None:
    import runtime.demo

    with LLM(device="cpu", max_loras=1, max_lora_rank=16) as llm:
        llm.load_adapter("roman", str(Path(runtime.demo.__file__).parent / "adapters" / "roman"))
        (base,), (adapted,) = (llm.decide("12", QUESTIONS[:1], adapter=name) for name in (None, "roman"))
        assert base.label_mass != adapted.label_mass


def test_refusals(llm: LLM) -> None:
    for state, questions, message in (
        ("x" * 5000, QUESTIONS, r"questions\[0\]: its prompt and the answer exceed"), (STATE, [], "0 questions"),
        (STATE, QUESTIONS * 81, "405 questions"),
        (STATE, [Question.choice("Which?", [str(n) for n in range(40)])], r"questions\[0\]: has 40 options"),
    ):  # fmt: skip
        with pytest.raises(RequestError, match=message):
            llm.decide(state, questions)

"""Tests of constrained decoding against a naive decoder."""

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema_rs
import llguidance
import numpy as np
import pytest

from runtime import LLM, SamplingParams
from runtime.request.structured import grammar_of
from runtime.structured_output.gbnf import translate_grammar
from tests.oracle.draws import choose
from tests.oracle.model import OracleModel
from tests.server.checkpoint import CONFIG, EOS, MASK, write_checkpoint
from tests.structured_output import forms

BLOCK, VOCAB = CONFIG["block_size"], CONFIG["vocab_size"]
LARGEST = 260  # the tokenizer's largest id


@dataclass(frozen=True)
class Found:
    tokens: list[int]
    nfe: int
    reason: str


class Naive:
    """A naive decoder of one request."""

    def __init__(self, directory: Path) -> None:
        self.model = OracleModel.load(directory, block=BLOCK)
        text = (directory / "tokenizer.json").read_text(encoding="utf-8")
        self.tokens = llguidance.LLTokenizer(text, n_vocab=VOCAB, eos_token=[EOS, EOS + 1])

    def next(self, grammar: str, answer: list[int]) -> tuple[list[int], bool]:
        """Returns the tokens that may follow, and whether the grammar forces one."""
        matcher = llguidance.LLMatcher(self.tokens, translate_grammar(grammar))
        assert matcher.consume_tokens(answer)
        if matcher.is_stopped():
            return [EOS], True
        forced = matcher.compute_ff_tokens()
        if forced:
            return forced[:1], True
        bits = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")[:VOCAB]
        return [i for i in np.flatnonzero(bits).tolist() if i != MASK and i <= LARGEST], False

    def decode(self, prompt: list[int], p: SamplingParams, threshold: float) -> Found:
        grammar = grammar_of(p.structured_outputs, "structured_outputs")
        answer: list[int] = []
        assert p.max_tokens is not None
        nfe = 0
        while len(answer) < p.max_tokens:
            first = len(prompt) + len(answer)
            end = (first // BLOCK + 1) * BLOCK
            logits = self.model([*prompt, *answer, *[MASK] * (end - first)])
            for position in range(first, end):
                allowed, forced = self.next(grammar, answer)
                row = np.full(VOCAB, -np.inf)
                row[allowed] = logits[position][allowed]
                found = choose(row, p.temperature or 0.0, p.top_k or 0, p.top_p or 1.0, p.seed or 0, position, nfe)
                if not forced and position > first and not found.conf > threshold:
                    break
                token = allowed[0] if forced else found.token
                answer.append(token)
                if token in (EOS, EOS + 1):
                    break
            nfe += 1
            ends = [i for i, token in enumerate(answer) if token in (EOS, EOS + 1)]
            if ends and ends[0] < p.max_tokens:
                return Found(answer[: ends[0]], nfe, "stop")
        return Found(answer[: p.max_tokens], nfe, "length")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("walk") / "tiny")


@pytest.fixture(scope="module")
def naive(directory: Path) -> Naive:
    return Naive(directory)


def load(directory: Path, **flags: Any) -> LLM:
    named = {"device": "cpu", "dtype": "float64", "max_model_len": 128, "page_size": 8, "num_pages": 200}
    return LLM(str(directory), **(named | flags))


@pytest.fixture(scope="module")
def llm(directory: Path) -> Iterator[LLM]:
    with load(directory) as llm:
        yield llm


def asked(count: int, seed: int) -> list[tuple[list[int], SamplingParams, float]]:
    rng = random.Random(seed)
    made = []
    for i in range(count):
        form: dict[str, Any] = {"json": forms.schema(rng)} if i % 2 else {"regex": forms.regex(rng)}
        threshold = rng.choice([0.05, 0.1, 0.3, 0.9])
        params = SamplingParams(
            structured_outputs=form, max_tokens=rng.randint(5, 40), temperature=rng.choice([0.0, 0.0, 0.7, 1.5]),
            top_k=rng.choice([0, 3]), top_p=rng.choice([1.0, 0.8]), seed=i, decoding={"accept_threshold": threshold},
            structured_complete=False,
        )  # fmt: skip
        made.append(([rng.randrange(32, 127) for _ in range(rng.randint(1, 30))], params, threshold))
    return made


def compare(llm: LLM, naive: Naive, requests: list[tuple[list[int], SamplingParams, float]]) -> None:
    outs = llm.generate([prompt for prompt, _, _ in requests], [params for _, params, _ in requests])
    for (prompt, params, threshold), out in zip(requests, outs, strict=True):
        expected = naive.decode(prompt, params, threshold)
        assert Found(out.token_ids, out.nfe, out.finish_reason) == expected, params.structured_outputs


def test_answers_equal_those_of_the_naive_decoder(llm: LLM, naive: Naive) -> None:
    compare(llm, naive, asked(24, 1))


@pytest.mark.parametrize(
    "flags",
    [{"buffer_size": 4}, {"num_pages": 20, "max_num_reqs": 8}, {"disable_prefix_caching": True, "page_size": 16},
     {"max_num_batched_tokens": 32}, {"deterministic": True}],
    ids=["several blocks", "preemption", "no prefixes", "chunks", "deterministic"],
)  # fmt: skip
def test_serving_flags_do_not_change_answers(directory: Path, naive: Naive, flags: dict[str, Any]) -> None:
    with load(directory, **flags) as llm:
        compare(llm, naive, asked(12, 2))
        if "num_pages" in flags:
            assert llm.engine.stats().preemptions > 0


def test_unconstrained_requests_in_the_same_batch_answer_as_alone(llm: LLM) -> None:
    rng = random.Random(3)
    prompts = [[rng.randrange(32, 127) for _ in range(9)] for _ in range(4)]
    free = [SamplingParams(max_tokens=24, seed=i, temperature=float(i % 2), ignore_eos=True) for i in range(4)]
    alone = [out.token_ids for out in llm.generate(prompts, free)]
    others = asked(4, 4)
    outs = llm.generate(
        [prompt for pair in zip(prompts, [o[0] for o in others], strict=True) for prompt in pair],
        [params for pair in zip(free, [o[1] for o in others], strict=True) for params in pair],
    )
    assert [out.token_ids for out in outs[::2]] == alone


def test_an_aborted_request_leaves_nothing(llm: LLM) -> None:
    stream = llm.stream([65, 66], SamplingParams(structured_outputs={"regex": "[a-z]{40}"}, max_tokens=60))
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    assert not llm.engine.has_work()
    assert llm.engine.stats().pages_used == 0


def accepts(naive: Naive, schema: dict[str, Any], text: str) -> bool:
    """Whether the grammar of a schema accepts a JSON text."""
    return matches(naive, {"json": schema}, text)


def matches(naive: Naive, constraint: dict[str, Any], text: str) -> bool:
    """Whether the grammar of `structured_outputs` accepts a text."""
    grammar = grammar_of(constraint, "structured_outputs")
    matcher = llguidance.LLMatcher(naive.tokens, translate_grammar(grammar))
    assert not matcher.is_error(), matcher.get_error()
    tokens = naive.tokens.tokenize_bytes(text.encode())
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


@pytest.mark.parametrize(
    "pattern",
    [
        r'^[^"]$', r'^[^"\\]$', r"^[^\n\\]$", r'^[^<>:"/\\|?*]$', r'^[^\d"]$', "^[^!-~]$", r"^[\x00-\x1f]$",
        "^[\0-\x1f]$", r"^[\u{0}-\x1f]$", r"^[\x00-\x00a]$", r"^[\u0000-!#-\u007e]$", r"^\P{P}$", r"^[^/]$",
        r"^[\s\S]$",
    ],
)  # fmt: skip
def test_escaped_characters_are_allowed_where_the_pattern_allows_the_characters(naive: Naive, pattern: str) -> None:
    checked = jsonschema_rs.validator_for({"pattern": pattern})
    for character in map(chr, range(1, 127)):
        text = json.dumps(character)
        assert accepts(naive, {"type": "string", "pattern": pattern}, text) == checked.is_valid(character), text


@pytest.mark.parametrize(
    ("excluded", "schema"),
    [
        ("0", {"exclusiveMinimum": 0, "maximum": 0.5}),
        ("3", {"exclusiveMinimum": 3, "exclusiveMaximum": 3.25}),
        ("-0", {"minimum": -0.25, "exclusiveMaximum": 0}),
        ("0", {"minimum": 0, "exclusiveMinimum": True, "maximum": 0.5}),
    ],
)
def test_an_excluded_integer_is_refused_next_to_a_bound_with_the_same_integral_part(
    naive: Naive, excluded: str, schema: dict[str, Any]
) -> None:
    schema = {"type": "number", **schema}
    assert accepts(naive, schema, f"{excluded}.1")
    assert not accepts(naive, schema, excluded)
    assert not accepts(naive, schema, f"{excluded}.0")


@pytest.mark.parametrize(
    ("schema", "accepted", "refused"),
    [
        ({"exclusiveMinimum": 4}, ["4.1", "4.00000000000001"], ["4", "4.0", "4.00000000000000001"]),
        ({"exclusiveMaximum": -4}, ["-4.1", "-4.00000000000001"], ["-4", "-4.0", "-4.00000000000000001"]),
        ({"exclusiveMinimum": 0}, ["0.1", "1", "0.00000000000000001"], ["0", "0.0", "-1"]),
        ({"exclusiveMinimum": 4, "minimum": 5}, ["5", "5.0"], ["4.5"]),
        ({"exclusiveMinimum": 5, "minimum": 4}, ["5.1"], ["4.5", "5"]),
        ({"exclusiveMinimum": 3, "maximum": 3.5, "multipleOf": 0.5}, ["3.5"], ["3", "3.0"]),
        ({"exclusiveMinimum": 0, "maximum": 0.5, "multipleOf": 0.1}, ["0.1", "0.5"], ["0", "0.0"]),
        ({"exclusiveMinimum": -3.5, "exclusiveMaximum": -3, "multipleOf": 0.25}, ["-3.25"], ["-3", "-3.5"]),
        ({"exclusiveMinimum": 999999999999999}, ["1000000000000000", "1000000000000001"], ["999999999999999"]),
        ({"exclusiveMinimum": 0.5, "maximum": 0.5000000000000005}, ["0.5000000000000002"], ["0.6"]),
    ],
)
def test_excluded_numbers_and_those_that_readers_round_to_them_are_refused(
    naive: Naive, schema: dict[str, Any], accepted: list[str], refused: list[str]
) -> None:
    for kind in ("number", ["integer", "number"], ["number", "null"]):
        found = {text for text in (*accepted, *refused) if accepts(naive, {"type": kind, **schema}, text)}
        assert found == set(accepted)


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"minimum": 0.5, "exclusiveMaximum": 1}, 0.9), ({"minimum": 0, "exclusiveMaximum": 0.5}, 0.4),
        ({"exclusiveMinimum": -1, "maximum": -0.5}, -0.9), ({"exclusiveMinimum": 0, "maximum": 0.5}, 0.4),
        ({"exclusiveMinimum": 0, "maximum": 1e400}, 0.4),
    ],
)  # fmt: skip
def test_values_near_exclusive_bounds_are_accepted(naive: Naive, schema: dict[str, Any], value: float) -> None:
    for more in ("", "9", "99", "999"):
        assert accepts(naive, {"type": "number", **schema}, f"{value}{more}")


@pytest.mark.parametrize(
    ("rule", "text", "refused"),
    [
        (r'"\u00e9\u0041\u0022"', 'éA"', "e"), (r"[\u00e0-\u00ff]+", "éà", "e"),
        (r'"\U0001F600" [^\U00000041]', "😀B", "😀A"), (r'"\\u0041" "\x41\n"', "\\u0041A\n", "A"),
        (r'"\u4e2d"', "中", "\\u4e2d"),
    ],
)  # fmt: skip
def test_gbnf_escapes_name_their_character(naive: Naive, rule: str, text: str, refused: str) -> None:
    assert matches(naive, {"grammar": f"root ::= {rule}"}, text)
    assert not matches(naive, {"grammar": f"root ::= {rule}"}, refused)

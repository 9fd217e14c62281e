"""Checks with random schemas that answers end in their format: ``python -m tests.structured_output.witness_rule``.

If the witness of a schema has at most `max_tokens` tokens, the answer ends with `stop`. An answer that ends with `stop`
fits the schema, any other ends with `length`. A witness has at most twice the tokens of the shortest value.
"""

import argparse
import json
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import jsonschema_rs

from runtime import LLM, SamplingParams
from runtime.request.structured import grammar_of
from runtime.structured_output.grammar_cache import GrammarCache
from tests.server.checkpoint import write_checkpoint
from tests.structured_output import forms
from tests.structured_output.shortest import shortest

LONGEST = 400  # tokens of an answer, so that it fits in the context of both models with its prompt
BATCH = 24  # schemas whose answers are generated together
PROMPT = [{"role": "user", "content": "Anna, 34, lives in Rome. Write this as JSON."}]


@dataclass(frozen=True)
class Case:
    """A schema, the length of its witness, and of its shortest value in tokens of the tokenizer."""

    schema: dict[str, Any]
    witness: int
    shortest: int


def make_case(llm: LLM, schema: dict[str, Any]) -> Case:
    tokenizer, grammars = llm.tokenizer, llm.engine.grammars
    assert isinstance(grammars, GrammarCache)
    text = grammar_of({"json": schema}, "schema")
    witness = grammars.witness(text, grammars.compile(text, "schema"))
    assert witness is not None, schema
    return Case(schema, len(witness), len(tokenizer.encode(shortest(schema, lambda each: len(tokenizer.encode(each))))))


def budgets(case: Case, rng: random.Random) -> Sequence[int]:
    """Returns `max_tokens` of the answers: the witness's length, a bit less, a bit more, and enough."""
    lengths = case.witness - 1, case.witness, case.witness + rng.randint(1, 6), 2 * case.witness + 20
    return [min(max(1, length), LONGEST) for length in lengths]


def failures(llm: LLM, seed: int, count: int) -> Iterator[str]:
    """Yields what is wrong in the answers of `count` random schemas."""
    rng = random.Random(seed)
    cases = [make_case(llm, forms.schema(rng)) for _ in range(count)]
    for case in cases:
        if case.witness > 2 * case.shortest:
            yield f"a witness of {case.witness} tokens, the shortest value has {case.shortest}: {case.schema}"
    asked = [(case, max_tokens) for case in cases for max_tokens in budgets(case, rng)]
    params = [
        SamplingParams(
            structured_outputs={"json": case.schema}, max_tokens=max_tokens, seed=i, temperature=(0, 1.5)[i % 2]
        )
        for i, (case, max_tokens) in enumerate(asked)
    ]
    for (case, max_tokens), out in zip(asked, llm.generate([PROMPT] * len(asked), params), strict=True):
        where = f"max_tokens {max_tokens}, witness {case.witness}: {case.schema}: {out.text!r}"
        if out.finish_reason != "stop":
            if case.witness <= max_tokens or out.finish_reason != "length":
                yield f"ends with {out.finish_reason}: {where}"
            continue
        try:
            value = json.loads(out.text or "")
        except ValueError:
            yield f"is no JSON: {where}"
            continue
        if not jsonschema_rs.validator_for(case.schema).is_valid(value):
            yield f"does not fit: {where}"


def check(model: str | None, seeds: Sequence[int]) -> list[str]:
    """Returns what is wrong in a model's answers to BATCH schemas per seed."""
    with LLM(model, device="cpu", max_num_reqs=96) as llm:
        return [failure for seed in seeds for failure in failures(llm, seed, BATCH)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=5000, help="random schemas per model; default: 5000")
    parser.add_argument("--jobs", type=int, default=1, help="processes, each with 1.2 s of work per schema; default: 1")
    args = parser.parse_args()
    seeds = range(-(-args.count // BATCH))
    found: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as directory, ProcessPoolExecutor(args.jobs, get_context("spawn")) as pool:
        models = (None, str(write_checkpoint(Path(directory))))
        shares = [pool.submit(check, model, seeds[i :: args.jobs]) for model in models for i in range(args.jobs)]
        for share in as_completed(shares):
            for failure in share.result():
                print(failure, flush=True)
                found[failure.split(":")[0]] += 1
    print(f"{args.count} schemas with four lengths each, on two models: {sum(found.values())} exceptions")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())

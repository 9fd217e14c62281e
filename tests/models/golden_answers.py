"""Loads the golden cases, and checks an LLM's answers to those that decode, on any device."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import pytest

from runtime import LLM, SamplingParams
from tests.golden import GOLDEN
from tests.oracle.spelling import KINDS

GOLDENS = {key: key for key, kind in KINDS.items() if kind.golden}  # folder -> family
GOLDENS |= {"d2f_dream": "dream", "d2f_llada": "llada", "dmax": "llada2", "llada2dot2": "llada2dot2"}
SERVER = ("model_name", "decoding_strategy", "sampling_mode", "block_size", "buffer_size", "full_cache")  # flags


def cases(kind: str) -> list[Any]:
    """Returns pytest parameters (folder, case) of all golden cases of a kind."""
    found = []
    for folder in GOLDENS:
        for case in json.loads((GOLDEN / folder / "cases.json").read_text()):
            if case["kind"] == kind:
                settings = case.get("settings", {})
                by = [settings[name] for name in ("decoding_strategy", "algorithm") if name in settings]
                found.append(pytest.param(folder, case, id="-".join([folder, case["name"], *by])))
    return found


class LlmOf(Protocol):
    """Returns the LLM that serves a case of a folder."""

    def __call__(self, folder: str, case: dict[str, Any]) -> LLM: ...


@contextmanager
def llms(**flags: Any) -> Iterator[LlmOf]:
    """Yields a function that returns the LLM for a case."""
    made: tuple[str, LLM] | None = None

    def get(folder: str, case: dict[str, Any]) -> LLM:
        nonlocal made
        server = {name: case["settings"][name] for name in SERVER if name in case["settings"]}
        if "the mask must be given as a flag" in case.get("notes", ""):
            server["mask_token_id"] = case["mask_token_id"]
        key = json.dumps([folder, server])
        if made is None or made[0] != key:
            if made is not None:
                made[1].close()
                made = None  # in case the next one fails to load
            made = key, LLM(str(GOLDEN / folder), skip_tokenizer=True, **server, **flags)
        return made[1]

    yield get
    if made is not None:
        made[1].close()


def check_answer(llm: LLM, case: dict[str, Any]) -> None:
    """Checks tokens, number of forwards and finish reason, with and without `ignore_eos`."""
    assert llm.info.mask_token_id == case["mask_token_id"]
    assert llm.info.eos_token_ids == case["eos_token_ids"]
    settings = {name: value for name, value in case["settings"].items() if name not in SERVER}
    ask = {name: settings.pop(name) for name in ("max_tokens", "temperature")}
    for ignore_eos, suffix in ((False, ""), (True, "_ignore_eos")):
        if case[f"ids{suffix}"] is None:
            assert "only with ignore_eos" in case["notes"]
            continue
        params = SamplingParams(**ask, ignore_eos=ignore_eos, decoding=settings)
        (out,) = llm.generate([case["prompt_ids"]], params)
        assert out.token_ids == case[f"ids{suffix}"]
        assert out.nfe == case[f"nfe{suffix}"]
        assert out.finish_reason == ("length" if ignore_eos else case["finish_reason"])

"""``unmask verify``: compares ten answers of a model with recorded ids, or its logits with those of other code."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import msgspec

import runtime
from runtime.commands import authors_logits
from runtime.errors import ConfigError, RequestError

if TYPE_CHECKING:
    import torch

    from runtime.config import EngineConfig
    from runtime.llm import LLM
    from runtime.request.engine_messages import EngineInfo

PROMPTS = (
    "What is the capital of France?",
    "Write a haiku about rain.",
    "What is 17 times 23?",
    "Name three prime numbers above 50.",
    "Translate to German: The book is on the table.",
    "Write a Python function that reverses a string.",
    "Explain in one sentence why the sky is blue.",
    "List the planets of the solar system in order.",
    "A train travels 120 km in 1.5 hours. How fast is it?",
    "Complete the sentence: The quick brown fox",
)
MAX_TOKENS = 64  # of an answer
# Families whose layers and names of tensors are those of a model type of transformers.
TRANSFORMERS = {
    "a2d_qwen2": "qwen2", "a2d_qwen3": "qwen3", "diffucoder": "qwen2", "diffullama": "llama", "dream": "qwen2",
    "dream_reasoner": "qwen3", "fast_dllm_v2": "qwen2", "illada": "llama", "rnd1": "qwen3_moe", "sdar": "qwen3",
    "sdar_moe": "qwen3_moe", "stable_diffcoder": "llama",
}  # fmt: skip
# Fields of config.json that are not those of a class of transformers.
OWN_FIELDS = {"model_type", "architectures", "auto_map", "dtype", "torch_dtype", "transformers_version"}
# Standard deviations of a position's logits. If transformers' logits of two tokens are closer, rounding may decide
# which of them is the largest.
NEAR_TIE = {"float64": 1e-3, "float32": 1e-3, "bfloat16": 0.25, "float16": 0.25}

EPILOG = """\
Without a flag it prints the answers. Flags of `unmask serve` that change the model are accepted, such as --dtype.

examples:
  unmask verify JetLM/SDAR-8B-Chat --record answers.json
  unmask verify JetLM/SDAR-8B-Chat --answers answers.json
  unmask verify JetLM/SDAR-8B-Chat --against transformers --dtype float32

With the code of the authors, which the script runs where that code runs:
  unmask verify GSAI-ML/LLaDA-8B-Instruct --record answers.json
  unmask verify --print-script > authors_logits.py
  python authors_logits.py GSAI-ML/LLaDA-8B-Instruct answers.json authors.json
  unmask verify GSAI-ML/LLaDA-8B-Instruct --against authors.json --dtype float32

The exit code is 0 if all are equal, 1 if some differ, and 2 if they cannot be compared."""


def main(argv: list[str]) -> int:
    """Runs the prompts and compares. Returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="unmask verify", usage="unmask verify [MODEL] [--record FILE | --answers FILE | --against transformers | "
        "--against FILE | --print-script] [flags of the server]", epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Answers ten short prompts greedily, with the server's defaults for the model, and compares them. "
        "MODEL is a directory, org/name or hf://org/name[@revision]; without it, the demo model.",
        allow_abbrev=False,
    )  # fmt: skip
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--record", type=Path, metavar="FILE", help="write the ids of prompts and answers as JSON")
    action.add_argument("--answers", type=Path, metavar="FILE", help="compare with such a file, from another machine "
                        "or another program")  # fmt: skip
    action.add_argument(
        "--against", metavar="transformers|FILE",
        help="compare the logits of one forward per prompt with transformers' own model of the same layers, or with a "
        "file of the script",
    )  # fmt: skip
    action.add_argument("--print-script", action="store_true", help="print a script that writes the logits of a "
                        "repository's own code; it needs no unmask")  # fmt: skip
    model, rest = (argv[0], argv[1:]) if argv and not argv[0].startswith("-") else (None, argv)
    args, flags = parser.parse_known_args(rest)
    if args.print_script:
        print(Path(authors_logits.__file__).read_text(encoding="utf-8"), end="")
        return 0
    try:
        return _verify(model, args, flags)
    except (ConfigError, RequestError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _verify(model: str | None, args: argparse.Namespace, flags: list[str]) -> int:
    from runtime.cli import model as with_scheme
    from runtime.config import parse

    given = [] if model is None else ["--model", with_scheme(model)]
    engine = parse([*given, *flags], os.environ).engine
    recorded = None if args.answers is None else read_answers(args.answers)
    if args.record is not None and not args.record.absolute().parent.is_dir():
        raise ConfigError(f"--record {args.record}: its directory does not exist; create it")
    if args.record is not None and args.record.is_dir():
        raise ConfigError(f"--record {args.record}: is a directory; name a file")
    if args.against == "transformers":
        return _against_transformers(engine)
    if args.against is not None:
        return _against_file(engine, Path(args.against))
    with _load(engine) as llm:
        found = [_answer(llm, prompt) for prompt in PROMPTS]
        about = {"unmask": runtime.__version__, "model": engine.model or "the demo model", **_about(llm)}
    if args.record is not None:
        try:
            args.record.write_text(json.dumps({**about, "answers": found}), encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"--record {args.record}: cannot be written: {error.strerror}") from None
        print(f"{args.record}: {len(found)} answers")
    elif recorded is None:
        for each in found:
            print(f"> {each['prompt']}\n{each['text']}\n")
    return 0 if recorded is None else report(found, recorded)


def _load(engine: EngineConfig) -> LLM:
    from runtime.llm import LLM  # torch: after the flags, so that a wrong one is reported at once

    own = {each.name: getattr(engine, each.name) for each in dataclasses.fields(engine)}
    return LLM(**own)


def _prompt_ids(llm: LLM, prompt: str) -> list[int]:
    """Returns the ids of a conversation, or of plain text for a model without a chat template."""
    assert llm.tokenizer is not None
    if not llm.tokenizer.has_template:
        return llm.info.with_bos(llm.tokenizer.encode(prompt))
    messages = [{"role": "user", "content": prompt}]
    return llm.tokenizer.encode_chat(messages, **llm.info.template_variables)


def _answer(llm: LLM, prompt: str) -> dict[str, Any]:
    """Returns prompt and answer, as text and ids. Each runs alone, so that no other changes how sums are rounded."""
    from runtime.request.sampling_params import SamplingParams

    ids = _prompt_ids(llm, prompt)
    greedy = None if llm.info.mask_token_id is None else 0.0  # a canvas of noise is always sampled
    (answer,) = llm.generate([ids], SamplingParams(max_tokens=MAX_TOKENS, temperature=greedy, seed=0))
    return {"prompt": prompt, "prompt_ids": ids, "ids": answer.token_ids, "text": answer.text}


def _about(llm: LLM) -> dict[str, Any]:
    info = llm.info
    fields = ("family", "model_revision", "device", "dtype", "quantization", "block_size", "strategy")
    return {name: getattr(info, name) for name in fields} | {"algorithm": info.defaults().algorithm}


def read_answers(path: Path) -> list[dict[str, Any]]:
    """Returns the answers of a file of --record. Raises ConfigError if it has another form."""
    try:
        answers = json.loads(path.read_text(encoding="utf-8"))["answers"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ConfigError(f"--answers {path}: cannot be read ({error!r}); give a file of --record") from None

    def is_valid(each: Any) -> bool:
        lists = [each.get("ids"), each.get("prompt_ids", [])] if isinstance(each, dict) else [None]
        return all(isinstance(ids, list) and all(type(id) is int for id in ids) for ids in lists)

    wrong = [n for n, each in enumerate(answers) if not is_valid(each)] if isinstance(answers, list) else [0]
    if wrong or [each.get("prompt") for each in answers] != list(PROMPTS):
        where = f"answers[{wrong[0]}]" if wrong else "the prompts"
        raise ConfigError(f"--answers {path}: {where} differ from what --record writes; record it with this version")
    return list(answers)


def report(found: Sequence[dict[str, Any]], recorded: Sequence[dict[str, Any]]) -> int:
    """Prints which answers differ, and the first position. Returns the exit code."""
    different = 0
    for number, (own, other) in enumerate(zip(found, recorded, strict=True), 1):
        if (ids := other.get("prompt_ids")) is not None and ids != own["prompt_ids"]:
            print(f"prompt {number}: its ids differ {_where(own['prompt_ids'], ids)}: another tokenizer or template")
        elif own["ids"] != other["ids"]:
            print(f"answer {number} differs {_where(own['ids'], other['ids'])}")
        else:
            continue
        different += 1
    print(f"{len(found) - different} of {len(found)} answers are equal")
    return int(different > 0)


def _where(own: Sequence[int], other: Sequence[int]) -> str:
    at = next((n for n, pair in enumerate(zip(own, other, strict=False)) if pair[0] != pair[1]), None)
    if at is None:
        return f"in length: {len(own)}, not {len(other)} tokens"
    return f"from position {at}: {own[at]}, not {other[at]}"


def _against_transformers(engine: EngineConfig) -> int:
    """Compares the largest logit of each position with that of transformers. Returns the exit code."""
    from runtime.models.base import resolve_family
    from runtime.plugins import load_plugins
    from runtime.quantization.checkpoint.scheme import quantization_of
    from runtime.weights.checkpoint import open_checkpoint

    load_plugins(engine.plugin)
    checkpoint = open_checkpoint(engine.model)
    family = resolve_family(engine.model_name, checkpoint.config).key
    quantization = quantization_of(checkpoint.config, engine.quantization)
    if family not in TRANSFORMERS or quantization is not None:
        which = f"the family {family}" if quantization is None else f"{quantization} weights"
        raise ConfigError(
            f"--against transformers: transformers has no model with the layers and tensors of {which}; families that "
            f"it has, unquantized: {', '.join(TRANSFORMERS)}; use --answers"
        )
    with _load(engine) as llm:
        info = llm.info
        prompts = [_prompt_ids(llm, prompt) for prompt in PROMPTS]
        own = [_logits(llm, ids) for ids in prompts]
        device = info.device
    reference = Reference(checkpoint.path, TRANSFORMERS[family], info.dtype, device)
    expected = (reference.logits(ids, _block(info, ids)) for ids in prompts)
    found = ((logits, logits.std(-1), mine) for logits, mine in zip(expected, own, strict=True))
    return _report_logits(found, info.dtype, device)


def _block(info: EngineInfo, ids: Sequence[int]) -> int:
    return len(ids) if info.strategy == "full" else info.block_size


def _logits(llm: LLM, ids: Sequence[int]) -> torch.Tensor:
    return llm.logits(ids, _block(llm.info, ids)).cpu()


class AuthorsPrompt(msgspec.Struct):
    """A prompt in a file of the script.

    Attributes:
        ids: those of the largest logits of each position.
        std: standard deviation of all logits of each position.
    """

    prompt_ids: list[Annotated[int, msgspec.Meta(ge=0)]]
    ids: list[list[Annotated[int, msgspec.Meta(ge=0)]]]
    logits: list[list[float]]
    std: list[Annotated[float, msgspec.Meta(ge=0)]]

    def restored(self, path: Path, vocab_size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the logits [positions, vocab], -inf where the file has none, and their standard deviations."""
        import torch

        if max(max(each) for each in (self.prompt_ids, *self.ids)) >= vocab_size:
            raise ConfigError(
                f"--against {path}: has ids above the vocabulary of {vocab_size}; name the model it is of"
            )
        empty = torch.full((len(self.ids), vocab_size), -torch.inf)
        return empty.scatter_(1, torch.tensor(self.ids), torch.tensor(self.logits)), torch.tensor(self.std)


class AuthorsLogits(msgspec.Struct):
    """A file of the script (``authors_logits.py``)."""

    family: str
    strategy: str
    block_size: int
    prompts: Annotated[list[AuthorsPrompt], msgspec.Meta(min_length=1)]


def _against_file(engine: EngineConfig, path: Path) -> int:
    """Compares the largest logit of each position with those of a file of the script. Returns the exit code."""
    document = read_logits(path)
    with _load(engine) as llm:
        info = llm.info
        for name in ("family", "strategy", "block_size"):
            if (made := getattr(document, name)) != (own := getattr(info, name)):
                raise ConfigError(
                    f"--against {path}: has {name} {made}, not {own} as this model; make it of a file that --record "
                    "writes with the same flags"
                )
        found = [
            (*prompt.restored(path, info.vocab_size), _logits(llm, prompt.prompt_ids)) for prompt in document.prompts
        ]
    return _report_logits(found, info.dtype, info.device)


def read_logits(path: Path) -> AuthorsLogits:
    """Returns the content of a file of the script. Raises ConfigError if it has another form."""
    try:
        document = msgspec.json.decode(path.read_bytes(), type=AuthorsLogits)
        for number, prompt in enumerate(document.prompts):
            lengths = {len(prompt.prompt_ids), len(prompt.ids), len(prompt.logits), len(prompt.std)}
            widths = {*map(len, prompt.ids), *map(len, prompt.logits)}
            if len(lengths) != 1 or len(widths) != 1 or 0 in lengths | widths:
                raise ValueError(f"prompts[{number}] has rows of different lengths")
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"--against {path}: cannot be read ({error}); give a file of the script that --print-script prints"
        ) from None
    return document


def _report_logits(found: Iterable[tuple[torch.Tensor, torch.Tensor, torch.Tensor]], dtype: str, device: str) -> int:
    """Prints how many positions of each prompt have the same largest logit. Returns the exit code.

    Args:
        found: For each prompt the arguments of `compare`.
    """
    rows = []
    for number, (reference, deviations, own) in enumerate(found, 1):
        rows.append(compare(reference, deviations, own, NEAR_TIE[dtype]))
        print(f"prompt {number}: {rows[-1]}")
    total = Agreement(*map(sum, zip(*rows, strict=True)))
    print(f"{dtype} on {device}: {total}")
    return int(total.others > 0)


class Agreement(NamedTuple):
    """Numbers of positions: of all, of those with the same largest logit, and of others with and without a near tie."""

    positions: int
    equal: int
    near_ties: int
    others: int

    def __str__(self) -> str:
        return (
            f"the same token at {self.equal} of {self.positions} positions, near ties {self.near_ties}, "
            f"others {self.others}"
        )


def compare(reference: torch.Tensor, deviations: torch.Tensor, own: torch.Tensor, near_tie: float) -> Agreement:
    """Compares the largest logit of each position.

    Args:
        reference: float32 [positions, vocab].
        deviations: standard deviation of each position of the reference, [positions].
        own: [positions, vocab] of any type.
        near_tie: largest distance of the reference's logits of two tokens, in `deviations`, that rounding may cause.
    """
    own = own.float()
    best, mine = reference.argmax(-1, keepdim=True), own.argmax(-1, keepdim=True)
    gaps = reference.gather(-1, best) - reference.gather(-1, mine)
    broken = gaps.isnan() | own.gather(-1, mine).isnan()
    equal = (best == mine) & ~broken
    near = ~equal & ~broken & (gaps / deviations[:, None] <= near_tie)
    counts = len(own), int(equal.sum()), int(near.sum())
    return Agreement(*counts, counts[0] - counts[1] - counts[2])


class Reference:
    """A model of transformers with the tensors of a checkpoint. It runs no code of the repository.

    Raises:
        ConfigError: the checkpoint has other tensors than this model.
    """

    def __init__(self, directory: Path, model_type: str, dtype: str, device: str) -> None:
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM

        content = json.loads((directory / "config.json").read_text(encoding="utf-8"))
        fields = {name: value for name, value in content.items() if name not in OWN_FIELDS}
        if fields.get("head_dim", 0) is None:
            del fields["head_dim"]
        try:
            found: Any = AutoModelForCausalLM.from_pretrained(
                directory, config=AutoConfig.for_model(model_type, **fields), dtype=getattr(torch, dtype),
                attn_implementation="eager", output_loading_info=True, use_safetensors=True,
            )  # fmt: skip
        except OSError as error:  # such as shards without an index
            first = str(error).splitlines()[0]
            raise ConfigError(f"--against transformers: cannot read {directory}: {first}; use --answers") from None
        self.model, loaded = found
        if wrong := sorted({*loaded["missing_keys"], *loaded["unexpected_keys"], *loaded["mismatched_keys"]}, key=str):
            raise ConfigError(
                f"--against transformers: its {model_type} model and {directory} differ in {len(wrong)} tensors, such "
                f"as {wrong[0]}; use --answers"
            )
        self.device = torch.device(device)
        self.model.to(self.device).eval()

    def logits(self, ids: list[int], block: int) -> torch.Tensor:
        """Returns float32 logits [len(ids), vocab] on the CPU. A row attends to the keys up to the end of its block."""
        import torch

        ends = torch.arange(len(ids), device=self.device) // block * block + block
        hidden = torch.arange(len(ids), device=self.device)[None] >= ends[:, None]
        mask = torch.zeros(hidden.shape, dtype=self.model.dtype, device=self.device).masked_fill(hidden, float("-inf"))
        with torch.inference_mode():
            found = self.model(
                torch.tensor([ids], device=self.device), attention_mask=mask[None, None], use_cache=False
            )  # fmt: skip
        return torch.as_tensor(found.logits[0]).float().cpu()

"""`spec.engine`: how the model is decoded and how much room it gets. Every field is a flag of the runtime.

Flags that this version of the runtime refuses (quantization, enforceEager) have no field.
"""

from __future__ import annotations

import re
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from runtime.config import BY_DEST
from unmask_operator.api.base import Rule, Section
from unmask_operator.api.flags import flag_field
from unmask_operator.api.strategies import ANY_PAGE, OWN_STEP, DecodingStrategy

# What the operator sets or needs itself, and what reads files or opens sockets of the pod: a template, say, that is the
# engine's environment with its tokens could be asked back by any client.
RESERVED = (
    "api-key",
    "api-key-file",
    "chat-template",
    "config",
    "data-parallel-size",
    "drain-delay",
    "drain-timeout",
    "help",
    "host",
    "lora",
    "lora-path",
    "master-addr",
    "master-port",
    "model",
    "port",
    "print-config",
    "served-model-name",
    "torch-profiler-dir",
    "zmq-command-addr",
    "zmq-event-addr",
)
_RESERVED_ARGUMENT = rf"^(-h|--({'|'.join(name.replace('-', '[-_]') for name in RESERVED)})(=.*)?)$"
_BATCHED = BY_DEST["max_num_batched_tokens"].default


def _is_one(strategies: tuple[str, ...]) -> str:
    return f"(has(self.decodingStrategy) && self.decodingStrategy in [{', '.join(map(repr, strategies))}])"


def _pages_fit(engine: Engine) -> bool:
    block, page = engine.block_size, engine.page_size
    any_page = engine.decoding_strategy in ANY_PAGE
    return any_page or not (block and page) or block % page == 0 or page % block == 0


def _step_fits(engine: Engine) -> bool:
    step = (engine.block_size or 0) * ((engine.buffer_size or 1) + 1)
    return engine.decoding_strategy in OWN_STEP or step <= (engine.max_num_batched_tokens or _BATCHED)


def _dmax_edits(engine: Engine) -> bool:
    return engine.decoding_strategy != "Dmax" or engine.sampling_mode == "Edit"


def _no_remask_while_editing(engine: Engine) -> bool:
    return not (engine.sampling_mode == "Edit" and engine.thresholds and engine.thresholds.remask)


def _no_reserved(engine: Engine) -> bool:
    return not any(re.search(_RESERVED_ARGUMENT, argument) for argument in engine.extra_args)


def _no_variables(engine: Engine) -> bool:
    return not any("$(" in argument for argument in engine.extra_args)


class Thresholds(Section):
    """The server's defaults for decoding; a request may override each."""

    add_block: float | None = flag_field(
        "add-block-threshold", "Progress of the newest open block at which the next one opens. Default: 0.1."
    )
    semi_complete: float | None = flag_field(
        "semi-complete-threshold", "Progress of a block at which its successor may force a token. Default: 0.9."
    )
    accept: float | None = flag_field(
        "accept-threshold", "Confidence above which a token is taken. Default: the model family's own, else 0.9."
    )
    edit: float | None = flag_field(
        "edit-threshold", "Confidence above which the edit algorithm replaces a filled token. Default: 0."
    )
    remask: float | None = flag_field(
        "remask-threshold", "Confidence below which a filled token is masked again. Default: 0, which is never."
    )
    token_stability: float | None = flag_field(
        "token-stability-threshold", "Share of unchanged tokens at which the next block opens. Default: 0."
    )


class Engine(Section):
    """The engine's flags. What is left out is decided by the runtime."""

    rules: ClassVar = (
        Rule(
            f"{_is_one(ANY_PAGE)} || !has(self.blockSize) || !has(self.pageSize) || "
            "self.blockSize % self.pageSize == 0 || "
            "self.pageSize % self.blockSize == 0",
            _pages_fit,
            "must be a multiple or a divisor of blockSize",
            "pageSize",
        ),
        Rule(
            f"{_is_one(OWN_STEP)} || !has(self.blockSize) || "
            "self.blockSize * ((has(self.bufferSize) ? self.bufferSize : 1) + 1) <= "
            f"(has(self.maxNumBatchedTokens) ? self.maxNumBatchedTokens : {_BATCHED})",
            _step_fits,
            f"must be at least (bufferSize + 1) * blockSize, a step of one request; its default is {_BATCHED}",
            "maxNumBatchedTokens",
        ),
        Rule(
            "!has(self.decodingStrategy) || self.decodingStrategy != 'Dmax' || "
            "(has(self.samplingMode) && self.samplingMode == 'Edit')",
            _dmax_edits,
            "must be Edit with decodingStrategy Dmax",
            "samplingMode",
        ),
        Rule(
            "!has(self.samplingMode) || self.samplingMode != 'Edit' || !has(self.thresholds) || "
            "!has(self.thresholds.remask) || self.thresholds.remask == 0.0",
            _no_remask_while_editing,
            "does nothing with samplingMode Edit; remove one of them",
            "thresholds.remask",
        ),
        Rule(
            f"!has(self.extraArgs) || !self.extraArgs.exists(a, a.matches('{_RESERVED_ARGUMENT}'))",
            _no_reserved,
            "the operator itself sets or needs these flags, or they reach the pod's files: "
            f"{', '.join('--' + name for name in RESERVED)}; remove them and use the spec",
            "extraArgs",
        ),
        Rule(
            "!has(self.extraArgs) || !self.extraArgs.exists(a, a.contains('$('))",
            _no_variables,
            "Kubernetes would put a variable's value, a secret's too, in the place of $(NAME); write the value itself",
            "extraArgs",
        ),
    )

    decoding_strategy: DecodingStrategy | None = flag_field(
        "decoding-strategy", "How blocks are opened and decoded. Default: the model family's own."
    )
    sampling_mode: Literal["Naive", "Edit"] | None = flag_field(
        "sampling-mode",
        "Edit lets filled tokens be revised, and makes the edit algorithm the default. Default: Naive, where "
        "the model's family has it.",
    )
    block_size: int | None = flag_field(
        "block-size", "Tokens of a block. Default: the checkpoint's own, else the model family's.", high=4096
    )
    buffer_size: int | None = flag_field(
        "buffer-size", "Blocks denoised at once. Default: the strategy's own.", high=256
    )
    page_size: int | None = flag_field(
        "page-size",
        "Tokens of a page of the KV cache; a multiple or a divisor of the block, unless blocks begin at the prompt's "
        "end (Full, D2f, NemotronDiffusion, DiffusionGemma). Default: 32.",
        high=4096,
    )
    attn_impl: Literal["TritonGrouped", "Triton", "Torch"] | None = flag_field(
        "attn-impl", "Attention kernel. Default: TritonGrouped on GPUs, Torch on CPU."
    )
    kv_cache_layout: Literal["Unified", "Distinct"] | None = flag_field(
        "kv-cache-layout",
        "Keys and values of a page: token after token (Unified), or each head for itself, keys in pieces of 8 numbers "
        "and values transposed (Distinct). Default: Unified.",
    )
    dtype: Literal["Bfloat16", "Float16", "Float32"] | None = flag_field(
        "dtype", "Number format of weights and cache. Default: Bfloat16 on GPUs, Float32 on CPU."
    )
    max_model_len: int | None = flag_field(
        "max-model-len",
        "Tokens of prompt and answer together. Default: 4096, or the checkpoint's limit where that is smaller.",
        high=16_777_216,
    )
    max_num_batched_tokens: int | None = flag_field(
        "max-num-batched-tokens",
        f"Tokens of one forward; longer prompts are prefilled in chunks. Default: {_BATCHED}.",
        high=16_777_216,
    )
    max_num_reqs: int | None = flag_field(
        "max-num-reqs",
        f"Requests decoded at the same time, by each of a pod's engines. Default: {BY_DEST['max_num_reqs'].default}.",
        high=65_536,
    )
    gpu_memory_utilization: float | None = flag_field(
        "gpu-memory-utilization",
        "Share of the GPU memory free at start that may be used. Default: "
        f"{BY_DEST['gpu_memory_utilization'].default}. Only with gpu.",
    )
    prefix_caching: bool | None = flag_field(
        "disable-prefix-caching", "Whether prompts share what was computed for a common beginning. Default: true.",
        off=True,
    )  # fmt: skip
    thresholds: Thresholds | None = Field(
        default=None, description="Defaults for decoding; a request may override each."
    )
    extra_args: list[Annotated[str, Field(min_length=1, max_length=512, pattern=r"^[^\r\n]*$")]] = Field(
        default=[],
        max_length=64,
        description="More arguments for the runtime, one flag or value an entry, as --flag=value. They are checked by "
        "the runtime's own parser when the image is of the operator's version. Flags that the spec sets elsewhere (but "
        "for --device) and that read files are refused, and so is $(NAME), a variable of the pod.",
    )

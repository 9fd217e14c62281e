"""`spec.engine`: how the model is decoded and how much room it gets. Every field is a flag of the runtime.

Flags that few need (deterministic, enforce-eager) have no field: `extraArgs` takes them.
"""

from typing import Annotated, Literal

from pydantic import Field

from runtime.config import BY_DEST
from unmask_operator.api.base import Section
from unmask_operator.api.flags import flag_field
from unmask_operator.api.strategies import DecodingStrategy

# What the operator sets or needs itself, what prints something and ends, and what reads files or opens sockets of the
# pod: a template, say, that is the engine's environment with its tokens could be asked back by any client.
_OWN = "drain-delay drain-timeout host model port served-model-name"
_SIZES = "data-parallel-size expert-parallel-size tensor-parallel-size"
_ENDS = "help print-config"
_FILES = "api-key api-key-file chat-template config lora lora-config lora-path lora-routes torch-profiler-dir"
_SOCKETS = "master-addr master-port zmq-command-addr zmq-event-addr"
RESERVED = tuple(sorted(" ".join((_OWN, _SIZES, _ENDS, _FILES, _SOCKETS)).split()))
BATCHED = BY_DEST["max_num_batched_tokens"].default


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
    quantization: Literal["Fp8", "Int8", "Int4"] | None = flag_field(
        "quantization",
        "Format of linear layers and experts, made while they are loaded: half the memory of 16 bits (Fp8, on GPUs "
        "from compute capability 8.9 on, and Int8) or little more than a quarter (Int4). Default: what the checkpoint "
        "holds.",
    )
    max_model_len: int | None = flag_field(
        "max-model-len",
        "Tokens of prompt and answer together. Default: 4096, or the checkpoint's limit where that is smaller.",
        high=16_777_216,
    )
    max_num_batched_tokens: int | None = flag_field(
        "max-num-batched-tokens",
        f"Tokens of one forward; longer prompts are prefilled in chunks. Default: {BATCHED}.",
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

"""`spec.engine`: decoding and memory settings. Every field sets a flag of the runtime.

Rarely used flags (deterministic, enforce-eager) have no field; set them in `extraArgs`.
"""

from typing import Annotated, Literal

from pydantic import Field

from runtime.config import BY_DEST
from unmask_operator.api.base import Section, flag_field
from unmask_operator.api.strategies import DecodingStrategy

# Flags that extraArgs must not contain: flags that the operator sets, flags that print and exit, and flags that read
# files, run code or open sockets in the pod. For example, a chat template read from /proc could expose the engine's
# tokens.
_OWN = "drain-delay drain-timeout host model port served-model-name"
_SIZES = "data-parallel-size expert-parallel-size tensor-parallel-size num-nodes node-rank"
_ENDS = "help help-all print-config"
_FILES = "api-key api-key-file chat-template config lora lora-config lora-path lora-routes plugin torch-profiler-dir"
_SOCKETS = "master-addr master-port zmq-command-addr zmq-event-addr"
RESERVED = tuple(sorted(" ".join((_OWN, _SIZES, _ENDS, _FILES, _SOCKETS)).split()))
_Argument = Annotated[str, Field(min_length=1, max_length=512, pattern=r"^[^\r\n]*$")]
BATCHED = BY_DEST["max_num_batched_tokens"].default


class Thresholds(Section):
    """Default decoding thresholds. A request can override each of them."""

    add_block: float | None = flag_field("add-block-threshold")
    """Progress of the newest open block at which the next block opens. Default: 0.1."""
    semi_complete: float | None = flag_field("semi-complete-threshold")
    """Progress of a block at which the next block may force a token. Default: 0.9."""
    accept: float | None = flag_field("accept-threshold")
    """Confidence above which a token is accepted. Default: that of the model, else 0.9."""
    edit: float | None = flag_field("edit-threshold")
    """Confidence above which the edit algorithm replaces an unmasked token. Default: that of the model, else 0."""
    remask: float | None = flag_field("remask-threshold")
    """Confidence below which an unmasked token is masked again. Default: 0 (never)."""
    token_stability: float | None = flag_field("token-stability-threshold")
    """Fraction of unchanged tokens at which the next block opens. Default: 0."""


class Engine(Section):
    """Flags of the engine. The runtime chooses the value of a field that is not set."""

    decoding_strategy: DecodingStrategy | None = flag_field("decoding-strategy")
    """Decoding strategy. Default: the model family's default."""
    sampling_mode: Literal["Naive", "Edit"] | None = flag_field("sampling-mode")
    """Edit allows the revision of unmasked tokens and makes edit the default algorithm. Default: Edit for LLaDA2.2, and
    for LLaDA2.1 by its name, else Naive."""
    block_size: int | None = flag_field("block-size", high=4096)
    """Tokens per block. Default: the checkpoint's value, else the model family's."""
    buffer_size: int | None = flag_field("buffer-size", high=256)
    """Maximum number of blocks denoised at once. Default: the strategy's default."""
    page_size: int | None = flag_field("page-size", high=4096)
    """Tokens per page of the KV cache. Must be a multiple or a divisor of blockSize, unless blocks start at the end of
    the prompt (Full, D2f, NemotronDiffusion, DiffusionGemma). Default: 32."""
    attn_impl: Literal["TritonGrouped", "Triton", "Torch"] | None = flag_field("attn-impl")
    """Attention kernel. Default: TritonGrouped on GPUs, Torch on CPU."""
    kv_cache_layout: Literal["Unified", "Distinct"] | None = flag_field("kv-cache-layout")
    """Layout of a KV cache page. Unified: one token after another. Distinct: one head after another, with keys in
    groups of 8 elements and values transposed. Default: Unified."""
    dtype: Literal["Bfloat16", "Float16", "Float32"] | None = flag_field("dtype")
    """Data type of weights and KV cache. Default: Bfloat16 on GPUs, Float32 on CPU."""
    quantization: Literal["Fp8", "Int8", "Int4", "Nvfp4"] | None = flag_field("quantization")
    """Quantization of linear layers and experts at load time. Compared with 16-bit weights, Fp8 and Int8 need half the
    memory, Int4 and Nvfp4 slightly more than a quarter. Fp8 on GPUs requires compute capability 8.9. Default: the
    checkpoint's format."""
    max_model_len: int | None = flag_field("max-model-len", high=16_777_216)
    """Maximum number of prompt and output tokens of a request. Default: the length that the checkpoint was trained for,
    or the longest request for which there is memory."""
    max_num_batched_tokens: int | None = flag_field(
        "max-num-batched-tokens",
        f"Maximum number of tokens per forward. Longer prompts are prefilled in chunks. Default: {BATCHED}.",
        high=16_777_216,
    )
    max_num_reqs: int | None = flag_field(
        "max-num-reqs",
        f"Maximum number of running requests per engine. Default: {BY_DEST['max_num_reqs'].default}.",
        high=65_536,
    )
    gpu_memory_utilization: float | None = flag_field(
        "gpu-memory-utilization",
        "Fraction of the GPU memory free at startup that the engine may use. Default: "
        f"{BY_DEST['gpu_memory_utilization'].default}. Only with gpu.",
    )
    prefix_caching: bool | None = flag_field("disable-prefix-caching", off=True)
    """Whether prompts with a common prefix reuse its KV cache. Default: true."""
    thresholds: Thresholds | None = None
    """Default decoding thresholds. A request can override each of them."""
    extra_args: list[_Argument] = Field(default=[], max_length=64)
    """Additional arguments of the runtime, one flag or value per entry, such as --flag=value. The runtime's own parser
    checks them if the image has the operator's version. Not allowed: flags that other fields set (except --device),
    flags that read files, and $(NAME), which Kubernetes expands."""

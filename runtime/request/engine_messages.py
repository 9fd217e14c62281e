"""Messages to and from the engine: requests, outputs, and information about the engine. No torch.

Frontend and backend processes exchange these structs, and ``runtime.LLM`` passes them to the engine in its process.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from runtime.request.block_layout import BlockLayout
from runtime.request.field_spec import AlgorithmInfo, Field, Value, values_of

SAMPLING = ("temperature", "top_p", "top_k", "min_p")

StreamMode = Literal["final", "stable", "denoise"]
FinishReason = Literal["stop", "length", "max_nfe", "repetition", "abort", "error"]


class DecodingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Resolved decoding parameters of a request (docs/research/decoding-rules.md#values-of-fields).

    `values` maps the fields of the strategy and of the unmasking algorithm (``runtime.request.field_spec``) to values.
    """

    algorithm: str = "threshold"
    values: dict[str, Value] = {}
    total_steps: int | None = None  # steps of all blocks, instead of the field `steps` per block
    force_single_batch: bool = False  # no other request shares the forward passes


class LogitsProcessorParams(msgspec.Struct, frozen=True, kw_only=True):
    """Logits processors of a request: bias, penalties and min_tokens.

    See docs/guide/decoding.md#logits-processors.
    """

    bias: dict[int, float] = {}  # token id -> added to the logit
    repetition: float = 1.0  # repetition, presence and frequency: penalties on tokens that already occur
    presence: float = 0.0
    frequency: float = 0.0
    min_tokens: int = 0  # output tokens before an end-of-sequence or stop token is allowed


class StructuredLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of structured output against values without end (docs/guide/structured-output.md#an-answer-ends).

    0 stands for no limit.
    """

    complete: bool = True  # the output ends in its format before `max_tokens`
    max_length: int = 32768  # characters of a JSON string without a maximum of its own
    max_items: int = 1024  # items of a JSON array without a maximum of its own
    max_run: int = 256  # tokens that repeat those shortly before them; needs `complete`


class ToolNames(msgspec.Struct, frozen=True, kw_only=True):
    """Constrains the names of the tool calls in an output whose other text is free.

    Attributes:
        opens: Start marker of a call.
        grammar: Grammar of the text after it, as in `RequestSpec`. It may end wherever no later token is constrained.
            If the marker is text, it begins with the marker or any end of it.
        special_tokens: Text of the markers that are special tokens, by id.
        reasoning: Start and end marker of reasoning at the beginning of the output, where no call begins; None: the
            model marks none.
        in_reasoning: Whether the prompt ends inside reasoning.
    """

    opens: str
    grammar: str
    special_tokens: dict[int, str] = {}
    reasoning: tuple[str, str] | None = None
    in_reasoning: bool = False


class RequestSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A validated request. The caller has validated it against ``EngineInfo``; the engine does not."""

    id: str
    prompt: list[int]
    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0  # 0: off
    min_p: float = 0.0
    seed: int = 0  # unsigned, 64 bits
    ignore_eos: bool = False
    stop_ids: list[int] = []  # they end the output even if `ignore_eos` is set
    logits_processors: LogitsProcessorParams | None = None
    max_nfe: int | None = None
    max_repetition_run: int | None = None
    decoding: DecodingParams = DecodingParams()
    logprobs: int | None = None  # number of most probable tokens to return per token; None: no logprobs
    processed_logprobs: bool = False  # of the distribution that tokens are drawn from; False: of the model
    stream_candidates: int = 0  # number of most probable tokens per masked position in denoise events
    step_map: BlockLayout | None = None  # blocks of the output, to return the step that wrote each token; None: do not
    forced_token_ids: list[int] = []  # the complete output, for scoring
    forced_tokens_per_step: int = 1
    # A read: the first denoising step returns the logprobs of these ids at every mask of the output, and ends it.
    read_ids: list[int] = []
    grammar: str = ""  # as written by ``request.structured``; "": none
    structured: StructuredLimits | None = None  # None: no grammar
    witness: list[int] | None = None  # a short output of the grammar, without an EOS; None: unknown
    tool_names: ToolNames | None = None  # None: names of calls are not constrained, or `grammar` does it
    pinned_tokens: dict[int, int] = {}  # offset in the output -> id, fixed from the start
    stream_mode: StreamMode = "final"
    cache_salt: str = ""
    adapter: str = ""  # name of the LoRA adapter; "": the base model
    counts_prompt: bool = True  # False: another request has the same prompt, which the statistics count once
    # For fair scheduling (request_queue.py): the id of the client's request that this is a part of, and its API key.
    parent_id: str = ""
    tenant: str = ""


MIN_LOGPROB = -9999.0  # replaces the logprob of tokens with probability 0, because JSON has no -inf


class TokenLogprobs(msgspec.Struct):
    """Logprobs of consecutive tokens: their own, and the most probable ids with theirs."""

    values: list[float]
    ids: list[list[int]]
    tops: list[list[float]]
    end: int | None = None  # the token that ended the output; the last entries are then for it


class TokenSteps(msgspec.Struct):
    """The steps that wrote consecutive tokens, see ``scheduling.step_map``."""

    first: list[int] = []
    last: list[int] | None = None  # None: those of `first`
    ordinals: list[int] = []  # of the first steps, among the steps that unmasked positions of the token's block


class EngineOutput(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Output of one request after a step.

    ``stream_mode="final"``: sent once, when the request finishes. ``"stable"``: when the stable text grew, and at the
    end. ``"denoise"``: after every step of the request, and at the end.
    """

    id: str
    nfe: int
    generated: int = 0  # tokens that steps have made so far, and denoising forwards: those that EngineStats counts
    forwards: int = 0
    new_tokens: list[int] = []  # ids that became stable since the last output (never an EOS, never sent twice)
    finish_reason: FinishReason | None = None
    error: str | None = None
    refused: bool = False  # the request caused the error: its grammar has no solution
    adapter_unloaded: bool = False  # the error: its adapter was unloaded before the request arrived
    # only for stream_mode="denoise": the open blocks, from absolute position `start`
    start: int = 0
    tokens: list[int] | None = None  # the mask id where masked; noise, in a family without a mask
    masked: list[int] | None = None  # offsets from start
    # if requested, of each masked position: the most probable tokens, and their probabilities; none if not computed
    candidates: list[list[int]] | None = None
    confidence: list[list[float]] | None = None
    cached_tokens: int | None = None
    queue_seconds: float | None = None
    prefill_seconds: float | None = None  # from the end of queueing to the end of the step with the last prompt tokens
    logprobs: TokenLogprobs | None = None  # of `new_tokens`, if requested
    steps: TokenSteps | None = None  # of `new_tokens`, if requested
    forced_end: str = ""  # limit that replaced tokens of the model by those of the grammar's witness; "": none
    # Of a read: for each mask, in order, the logprobs of its `read_ids` and the highest logprob of any token.
    read: list[list[float]] | None = None
    eos: bool = False  # an EOS ended the output (it counts as a token of the forward passes, not of the output)


class EngineInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Properties of a loaded engine that a frontend needs to validate requests."""

    family: str
    strategy: str
    device: str
    dtype: str
    vocab_size: int
    max_token_id: int  # largest id that a prompt may contain and the model may predict, except for the mask
    mask_token_id: int | None  # None: open positions contain noise
    eos_token_ids: list[int]
    block_size: int
    buffer_size: int
    page_size: int
    num_pages: int
    max_model_len: int
    max_num_reqs: int
    max_num_batched_tokens: int
    prefix_caching: bool
    strategy_fields: list[Field]  # here and in `algorithms`: with the defaults of this server
    algorithms: list[AlgorithmInfo]
    default_algorithm: str
    force_single_batch: bool = False  # default of this field of ``decoding``
    default_max_tokens: int | None = None  # None: the default of the route
    temperature: float = 0.0  # default: from generation_config.json, otherwise greedy
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    structured: StructuredLimits = StructuredLimits()  # of requests that set none
    structured_output_error: str = "no tokenizer is loaded"  # why grammars are unsupported; "": they are supported
    bos_token_id: int | None = None  # first id of every prompt that is plain text
    delete_token_id: int | None = None  # this and the next: edit tokens, which no output contains
    split_token_id: int | None = None
    blocks_from_prompt: bool = False  # this and the next: see BlockLayout
    truncate_last_block: bool = False
    sees_suffix: bool = False  # see ``Strategy.sees_suffix``
    tool_calls: str = "hermes"  # format of tool calls of the family, see ``runtime.parsers``
    reasoning: str = ""  # format of reasoning; "": none
    template_variables: dict[str, bool] = {}  # of the chat template, unless a request sets them
    model_revision: str | None = None  # commit of the Hugging Face hub
    quantization: str | None = None  # of linear layers and experts; None: weights have `dtype`
    tensor_parallel_size: int = 1
    expert_parallel_size: int = 1
    max_loras: int = 0  # adapters that the device holds at once; 0: requests cannot name one
    max_lora_rank: int = 0
    default_adapter: str = ""  # of requests that name none; "": the base model

    @property
    def block_layout(self) -> BlockLayout:
        """Positions of the blocks of a request."""
        return BlockLayout(self.block_size, self.blocks_from_prompt, self.truncate_last_block)

    def with_bos(self, ids: list[int]) -> list[int]:
        """Returns the prompt for the ids of a plain text: with the BOS token, if the model has one."""
        return ids if self.bos_token_id is None else [self.bos_token_id, *ids]

    @property
    def sampling(self) -> dict[str, float]:
        """Defaults of the fields `SAMPLING` of requests."""
        return {name: getattr(self, name) for name in SAMPLING}

    def algorithm(self, key: str) -> AlgorithmInfo | None:
        """Returns the unmasking algorithm of this name, None if the engine does not have it."""
        return next((algorithm for algorithm in self.algorithms if algorithm.key == key), None)

    def defaults(self, key: str | None = None) -> DecodingParams:
        """Returns the parameters of a request that sets at most the algorithm. KeyError if it is not available."""
        algorithm = self.algorithm(key or self.default_algorithm)
        if algorithm is None:
            raise KeyError(key)
        return DecodingParams(
            algorithm=algorithm.key,
            values=values_of((*self.strategy_fields, *algorithm.fields)),
            force_single_batch=self.force_single_batch,
        )


class EngineStats(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Counters since the start, gauges, and observations for histograms. The metrics page lists them."""

    waiting: int = 0
    adapters_waiting: dict[str, int] = {}  # waiting requests per adapter
    adapter_evictions: int = 0  # adapters that were unloaded from the device for others
    adapter_bytes: int = 0  # host memory of all adapters
    pages_total: int = 0
    pages_used: int = 0  # allocated to live requests
    pages_cached: int = 0  # only in the prefix cache, reclaimable
    prompt_tokens: int = 0
    generated_tokens: int = 0
    prefix_hit_tokens: int = 0
    forwards_prefill: int = 0  # forward passes of requests, by kind
    forwards_denoise: int = 0
    forwards_commit: int = 0
    forwards_read: int = 0
    steps: int = 0
    edits: int = 0
    remasks: int = 0
    forced: int = 0
    preemptions: int = 0
    steps_replayed: int = 0  # entirely from CUDA graphs
    steps_eager_graphs_disabled: int = 0  # this and the next five: see ``request.eager_reason``
    steps_eager_too_large: int = 0
    steps_eager_not_captured: int = 0
    steps_eager_sampling_eager: int = 0
    steps_eager_batch_invariant: int = 0
    steps_eager_logits_processors: int = 0
    graph_bytes: int = 0  # device memory of CUDA graphs
    graphs_pending: int = 0  # CUDA graphs that are yet to be captured while no request runs
    step_seconds: list[float] = []  # this and the next: observations since the last report
    device_seconds: list[float] = []  # device time of steps that sampled
    host_seconds: list[float] = []  # other time of such steps
    batch_sizes: list[int] = []
    block_steps: list[int] = []  # steps of each finished block

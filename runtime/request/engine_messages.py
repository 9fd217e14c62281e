"""What goes into the engine and what comes out of it: plain typed data, no torch.

These structs are also the payload of the messages between frontend and backend processes, and what
``runtime.LLM`` feeds the engine in-process, so both ways of using the engine see the same thing.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from runtime.request.block_layout import BlockLayout
from runtime.request.field_spec import Field, RuleInfo, Value, values_of

Report = Literal["final", "stable", "denoise"]
FinishReason = Literal["stop", "length", "max_nfe", "repetition", "abort", "error"]


class DecodingParams(msgspec.Struct, frozen=True, kw_only=True):
    """Resolved decoding parameters of a request (docs/decoding-rules.md#values-of-fields).

    `values` maps the fields of the strategy and of the unmasking algorithm (``runtime.request.field_spec``) to values.
    """

    algorithm: str = "threshold"
    values: dict[str, Value] = {}
    total_steps: int | None = None  # over all blocks, in place of the rule's `steps` a block
    force_single_batch: bool = False  # the request has its forwards to itself


class Shaping(msgspec.Struct, frozen=True, kw_only=True):
    """What a request has done to logits before anything is chosen (docs/decoding.md, What shapes the logits)."""

    bias: dict[int, float] = {}  # added, by token id
    repetition: float = 1.0  # these three: of tokens that are there already
    presence: float = 0.0
    frequency: float = 0.0
    min_tokens: int = 0  # of the answer, before which nothing may end it


class RequestSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A validated request. The engine trusts it: whoever builds it has checked it against ``EngineInfo``."""

    id: str
    prompt: list[int]
    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0  # 0: off
    min_p: float = 0.0
    seed: int = 0  # unsigned, 64 bits
    ignore_eos: bool = False
    stop_ids: list[int] = []  # that end the answer too, whatever `ignore_eos` says
    shaping: Shaping | None = None  # None: nothing is done to logits
    max_nfe: int | None = None
    max_repetition_run: int | None = None
    decoding: DecodingParams = DecodingParams()
    logprobs: int | None = None  # tell the tokens' log-probabilities, and of so many of the likeliest beside them
    recited: list[int] = []  # the answer, token by token, where it is only to be scored
    stride: int = 1  # so many of them a step
    grammar: str = ""  # that the answer keeps to, as ``request.structured`` writes it; "": none
    given: dict[int, int] = {}  # ids that stand at these offsets of the answer from the start, and stay
    report: Report = "final"
    cache_salt: str = ""
    adapter: str = ""  # its name; "": the base model
    # for fair shares (request_queue.py): what is sent at once, and who sends it
    group: str = ""
    owner: str = ""


LEAST = -9999.0  # of what cannot be predicted, for whose logarithm JSON has no number


class TokenLogprobs(msgspec.Struct):
    """Of each of some tokens, one after the other: its own log-probability, the likeliest ids and theirs."""

    values: list[float]
    ids: list[list[int]]
    tops: list[list[float]]
    end: int | None = None  # the token that ended the answer, of which the last numbers are then


class EngineOutput(msgspec.Struct, kw_only=True):
    """News of one request after a step.

    ``report="final"``: sent once, when the request ends. ``"stable"``: whenever the stable text grew, and at the
    end. ``"denoise"``: after every step the request took part in, and at the end.
    """

    id: str
    nfe: int
    new_tokens: list[int] = []  # ids that became stable since the last output (never an EOS, never sent twice)
    finish_reason: FinishReason | None = None
    error: str | None = None
    refused: bool = False  # the error is the request's own: its grammar cannot be kept to
    # report="denoise" only: the open blocks, from absolute position `start`
    start: int = 0
    tokens: list[int] | None = None  # mask id where masked; noise, in a family without a mask
    masked: list[int] | None = None  # offsets from start
    cached_tokens: int | None = None
    queue_seconds: float | None = None
    prefill_seconds: float | None = None  # from there to the end of the step that took in the prompt's last part
    logprobs: TokenLogprobs | None = None  # of `new_tokens`, where they are asked for
    eos: bool = False  # the answer ended at an EOS (it counts as a token of the forward passes, not of the answer)


class EngineInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of a loaded engine that a frontend needs to validate requests."""

    family: str
    strategy: str
    device: str
    dtype: str
    vocab_size: int
    max_token_id: int  # largest id a prompt may hold and the model may predict, the mask apart
    mask_token_id: int | None  # None: what is open is noise
    eos_token_ids: list[int]
    block_size: int
    buffer_size: int
    page_size: int
    num_pages: int
    max_model_len: int
    max_num_reqs: int
    max_num_batched_tokens: int
    prefix_caching: bool
    strategy_fields: list[Field]  # as all that follows, with this server's defaults
    rules: list[RuleInfo]
    default_rule: str
    default_max_tokens: int | None = None  # of a request that names none; None: its route says
    temperature: float = 0.0  # of a request that sets none: the checkpoint's generation_config, else greedy
    top_p: float = 1.0
    top_k: int = 0
    unstructured: str = "no tokenizer is loaded"  # why no answer can keep to a grammar; "": they can
    bos_token_id: int | None = None  # begins every prompt that is given as plain text
    delete_token_id: int | None = None  # these two: orders to edit, which never stand in an answer
    split_token_id: int | None = None
    blocks_from_prompt: bool = False  # these two: see BlockLayout
    truncate_last_block: bool = False
    tool_calls: str = "hermes"  # the formats in which the model's family writes these: see ``runtime.parsers``
    reasoning: str = ""  # "": it marks none
    model_revision: str | None = None  # the hub's commit that was loaded
    quantization: str | None = None  # of linear layers and experts; None: they are held in `dtype`
    tensor_parallel_size: int = 1  # processes that share the model,
    expert_parallel_size: int = 1  # and its experts, whole ones
    max_loras: int = 0  # adapters that the device holds at once; 0: requests cannot name any
    max_lora_rank: int = 0
    default_adapter: str = ""  # of requests that name none; "": these have the base model

    @property
    def block_layout(self) -> BlockLayout:
        """Where blocks lie."""
        return BlockLayout(self.block_size, self.blocks_from_prompt, self.truncate_last_block)

    def begun(self, ids: list[int]) -> list[int]:
        """The prompt whose plain text has these ids."""
        return ids if self.bos_token_id is None else [self.bos_token_id, *ids]

    def rule(self, key: str) -> RuleInfo | None:
        """The acceptance rule of that name, None if there is none here."""
        return next((rule for rule in self.rules if rule.key == key), None)

    def defaults(self, key: str | None = None) -> DecodingParams:
        """What a request gets that sets nothing but, perhaps, the rule. KeyError for a rule that is not here."""
        rule = self.rule(key or self.default_rule)
        if rule is None:
            raise KeyError(key)
        return DecodingParams(algorithm=rule.key, values=values_of((*self.strategy_fields, *rule.fields)))


class EngineStats(msgspec.Struct, kw_only=True):
    """Counters since start (totals) and gauges, as the metrics page names them; histograms as fresh observations."""

    waiting: int = 0
    adapters_waiting: dict[str, int] = {}  # of each adapter
    adapter_evictions: int = 0  # adapters that made room for others on the device
    pages_total: int = 0
    pages_used: int = 0  # held by live requests
    pages_cached: int = 0  # held by the prefix cache alone, reclaimable
    prompt_tokens: int = 0
    generated_tokens: int = 0
    prefix_hit_tokens: int = 0
    forwards_prefill: int = 0  # request-forwards by kind
    forwards_denoise: int = 0
    forwards_commit: int = 0
    steps: int = 0
    edits: int = 0
    remasks: int = 0
    forced: int = 0
    preemptions: int = 0
    steps_replayed: int = 0  # as recorded graphs
    steps_eager_off: int = 0  # these six: launched anew, for nothing is recorded here,
    steps_eager_prefill: int = 0  # for of so many rows nothing is recorded,
    steps_eager_new: int = 0  # for their shape has come up too seldom,
    steps_eager_flag: int = 0  # for head and rules are not to be recorded,
    steps_eager_apart: int = 0  # for these were done for each request by itself,
    steps_eager_shaped: int = 0  # and for a request has something done to its logits
    graph_bytes: int = 0  # of the device's memory, for recordings
    step_seconds: list[float] = []  # observations since the last report
    device_seconds: list[float] = []  # of steps that sampled something, as the device's own events tell
    host_seconds: list[float] = []  # what else such steps took
    batch_sizes: list[int] = []
    block_steps: list[int] = []  # steps each block that ended took

"""Parameters of a request, the state of a block, and one step of it.

See docs/research/decoding-rules.md#unmasking-algorithms.

Each position is decided on its own, in plain Python.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.oracle import insert_delete
from tests.oracle.draws import Choice, choose, softmax
from tests.oracle.rules import NAIVE_ALGORITHMS

PROMPT, MASKED, UNMASKED = "prompt", "masked", "filled"
ACTIVE, TO_CACHE, IN_CACHE = "active", "to_cache", "in_cache"


@dataclass(frozen=True, kw_only=True)
class Params:
    """Decoding parameters of a request, with the names and defaults of docs/guide/decoding.md#fields."""

    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0
    ignore_eos: bool = False
    max_nfe: int | None = None
    max_repetition_run: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    min_tokens: int = 0
    logit_bias: tuple[tuple[int, float], ...] = ()
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    algorithm: str = "threshold"
    accept_threshold: float = 0.9
    edit_threshold: float = 0.0
    remask_threshold: float = 0.0
    add_block_threshold: float = 0.1
    semi_complete_threshold: float = 0.9
    token_stability_threshold: float = 0.0
    max_post_edit_steps: int = 16
    penalty_lambda: float = 0.0
    max_steps_per_block: int = 64
    steps: int = 32
    total_steps: int | None = None  # of all blocks; replaces `steps`, which is per block
    step_remainder: str = "first"
    confidence_metric: str = "max_prob"
    factor: float = 1.0
    entropy_bound: float = 0.1
    low_threshold: float = 0.4
    local_leap_anchor: float = 0.9
    local_leap_neighbor: float = 0.75
    local_leap_radius: int = 4
    credit_weight: float = 0.7
    credit_decay: float = 0.8
    credit_power: float = 0.2
    suppress_eos: str = "none"
    sub_block_size: int = 8  # fast_dllm_v2
    block_cache: bool = False
    cache: str = "none"  # strategy full
    block_length: int = 4  # strategy full

    token_merge_mode: str = "dmax_topk"  # strategy dmax, as the next three fields
    token_merge_top_k: int = 1
    token_merge_renormalize: bool = True
    token_merge_weight: float = 1.0

    others: tuple[tuple[str, Any], ...] = ()  # names and values of all other fields of the algorithm

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Returns a value of `others`, for the function of the algorithm in `tests.oracle.rules`."""
            for key, value in self.__dict__.get("others", ()):
                if key == name:
                    return value
            raise AttributeError(f"Params has no {name!r}, and neither has `others`")

    @property
    def edits(self) -> bool:
        """Whether UNMASKED tokens are replaced, so that a block without masks may be unfinished."""
        return self.algorithm in ("edit", "dmax")

    @property
    def revises(self) -> bool:
        """Whether an UNMASKED position may still change (editing or remasking)."""
        return self.edits or (self.algorithm == "threshold" and self.remask_threshold > 0)

    def ends(self, token: int, eos_ids: frozenset[int]) -> bool:
        """Returns whether a token ends the answer. `ignore_eos` does not disable stop tokens."""
        return token in self.stop_token_ids or (token in eos_ids and not self.ignore_eos)


@dataclass(frozen=True)
class Shape:
    """Settings of the server, the strategy and the model."""

    block: int  # size
    buffer: int  # maximum number of open blocks
    mask_id: int
    eos_ids: frozenset[int]
    max_token_id: int  # larger ids are never predicted
    from_prompt: bool = False  # blocks begin at the prompt's end instead of position 0
    shift: int = 0  # number of positions by which the row with a position's logits precedes the position
    orders: tuple[int, int] | None = None  # DELETE and SPLIT of a model that inserts and deletes

    def first(self, prompt_len: int) -> int:
        """Returns the start of the first block that is not completely prompt."""
        return prompt_len if self.from_prompt else prompt_len // self.block * self.block


@dataclass
class Block:
    """The state of one block; lists are of length B."""

    start: int
    tokens: list[int]  # the mask id if MASKED
    state: list[str]
    status: str = ACTIVE
    force_steps: int = 0
    step_budget: int | None = None  # part of `total_steps`; replaces `steps`
    post_steps: int = 0  # edit: steps that began without masks; with edit tokens, without original ones
    ended: bool = False  # edit, dmax: no step changes it any more
    stepped: bool = False
    written: set[int] = field(default_factory=set)  # offsets the last step wrote
    remasked: set[int] = field(default_factory=set)  # offsets ever remasked
    credit: dict[int, dict[int, float]] = field(default_factory=dict)  # by offset and token
    top_tokens: dict[int, list[tuple[int, float]]] = field(default_factory=dict)  # dmax: the last step's, by offset
    # with edit tokens: offsets of original masks, states before earlier steps, and tokens written per offset
    original: set[int] = field(default_factory=set)
    history: list[tuple[int | None, ...]] = field(default_factory=list)
    chosen: dict[int, set[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.original = set(self.masked)

    @property
    def free(self) -> list[int]:
        """Offsets that are not fixed."""
        return [i for i, s in enumerate(self.state) if s != PROMPT]

    @property
    def masked(self) -> list[int]:
        return [i for i, s in enumerate(self.state) if s == MASKED]

    @property
    def filled(self) -> list[int]:
        return [i for i, s in enumerate(self.state) if s == UNMASKED]

    @property
    def progress(self) -> float:
        return len(self.filled) / len(self.free) if self.free else 1.0

    @property
    def same_token_ratio(self) -> float:
        if not self.free:
            return 1.0
        if not self.stepped or not self.filled:
            return 0.0
        return sum(i not in self.written for i in self.filled) / len(self.filled)


@dataclass(frozen=True)
class Decision:
    """Changes of one block that one step has decided and not yet applied. Offsets count from the block's start."""

    accept: dict[int, int] = field(default_factory=dict)  # MASKED offset -> token
    edit: dict[int, int] = field(default_factory=dict)  # UNMASKED offset -> other token
    remask: set[int] = field(default_factory=set)
    ends: bool = False  # edit and dmax
    ordered: insert_delete.Step | None = None  # with edit tokens; `apply` then ignores the fields above
    top_tokens: dict[int, list[tuple[int, float]]] = field(default_factory=dict)  # dmax: tokens and probabilities


def banned(logits: np.ndarray, shape: Shape) -> np.ndarray:
    """Returns the logits with -inf for ids that are never predicted (docs/research/decoding-rules.md#logits)."""
    out = np.array(logits, dtype=np.float64)
    out[..., shape.mask_id] = -np.inf
    out[..., shape.max_token_id + 1 :] = -np.inf
    return out


def allowed(logits: np.ndarray, p: Params, shape: Shape) -> np.ndarray:
    """Returns the logits [n, vocab] with -inf for all ids that this request must not predict."""
    rows = banned(logits, shape)
    if p.suppress_eos == "logits":
        rows[:, sorted(shape.eos_ids)] = -np.inf
    return rows


def choose_alone(row: np.ndarray, p: Params, shape: Shape, *, position: int, step: int) -> int:
    """Returns the candidate of a position that is sampled on its own, whatever the confidence."""
    rows = allowed(row[None], p, shape)
    if p.algorithm == "credit":
        fuse_credit(Block(position, [shape.mask_id], [MASKED]), rows, p)
    return choose(rows[0], p.temperature, p.top_k, p.top_p, p.seed, position, step, p.min_p).token


def accept_masked(
    block: Block, choices: dict[int, Choice], threshold: float, force: bool, fill: bool
) -> dict[int, int]:
    """Returns the tokens of the masked positions that are unmasked, by offset.

    See docs/research/decoding-rules.md#algorithm-threshold. With `fill` all of them are, because the step limit is
    reached.
    """
    if fill:
        return {i: c.token for i, c in choices.items()}
    taken = {i: c.token for i, c in choices.items() if c.conf > threshold}
    if not taken and force and choices:
        best = min(choices, key=lambda i: (-choices[i].conf, i))
        taken = {best: choices[best].token}
    return taken


def fuse_credit(block: Block, rows: np.ndarray, p: Params) -> None:
    """Updates the credits of the masked positions and adds them to the logits in `rows`.

    See docs/research/decoding-rules.md#algorithm-credit.
    """
    for i in block.masked:
        best = int(np.argmax(rows[i]))
        gain = float(softmax(rows[i])[best]) ** p.credit_power
        gathered = {token: p.credit_decay * c for token, c in block.credit.get(i, {}).items()}
        gathered[best] = gathered.get(best, 0.0) + gain
        block.credit[i] = gathered
        for token, c in gathered.items():
            rows[i, token] += p.credit_weight * np.log(1 + c)


def decide(block: Block, logits: np.ndarray, p: Params, shape: Shape, *, force: bool, step: int) -> Decision:
    """Decides on one step of one ACTIVE block, which must advance with `force`. It changes only `block.credit`.

    `logits` are [B, vocab], also of ids that are never predicted. `step` is the nfe before this step.
    """
    rows = allowed(logits, p, shape)
    fill = force and block.force_steps + 1 >= p.max_steps_per_block

    def held_back(token: int) -> bool:
        return p.suppress_eos == "confidence" and token in shape.eos_ids

    def choices() -> dict[int, Choice]:
        found = {
            i: choose(rows[i], p.temperature, p.top_k, p.top_p, p.seed, block.start + i, step, p.min_p)
            for i in block.masked
        }
        return {i: Choice(c.token, -np.inf) if held_back(c.token) else c for i, c in found.items()}

    if p.algorithm in NAIVE_ALGORITHMS:
        if p.algorithm == "credit":
            fuse_credit(block, rows, p)
        found = choices()
        own = p if block.step_budget is None else replace(p, steps=block.step_budget)
        taken = NAIVE_ALGORITHMS[p.algorithm](found, own, force=force, masks=len(block.free), done=block.force_steps)
        accept = {i: found[i].token for i in (found if fill else taken)}
        remask: set[int] = set()
        capped = block.force_steps + force >= p.max_steps_per_block
        if p.algorithm == "threshold" and p.remask_threshold > 0 and not capped:
            for i in block.filled:
                if i not in block.remasked and softmax(rows[i])[block.tokens[i]] < p.remask_threshold:
                    remask.add(i)
        return Decision(accept=accept, remask=remask)

    assert p.algorithm == "edit", p.algorithm
    if block.ended:
        return Decision(ends=True)
    if p.penalty_lambda > 0:
        for i in range(1, len(block.tokens)):
            if block.state[i - 1] != MASKED:
                rows[i, block.tokens[i - 1]] -= p.penalty_lambda
    if shape.orders is not None:
        done = insert_delete.decide(
            block, rows, choices(), p, shape.orders, force=force, fill=fill, held_back=held_back
        )  # fmt: skip
        edit = {i: t for i, t in done.took.items() if i in block.filled and t != block.tokens[i]}
        return Decision(edit=edit, ends=done.ends, ordered=done)
    accept = accept_masked(block, choices(), p.accept_threshold, force, fill)
    edit = {}
    for i in block.filled:
        x = int(np.argmax(rows[i]))
        if x != block.tokens[i] and softmax(rows[i])[x] > p.edit_threshold and not held_back(x):
            edit[i] = x
    if not block.masked:
        if block.post_steps >= p.max_post_edit_steps:
            return Decision(ends=True)
        return Decision(edit=edit, ends=not edit)
    return Decision(accept=accept, edit=edit)


def apply(block: Block, decision: Decision, mask_id: int, *, force: bool) -> None:
    """Applies a decision to its block."""
    if block.ended:
        return
    if decision.ordered is not None:
        apply_ordered(block, decision.ordered, mask_id, force=force)
        return
    block.post_steps += not block.masked
    block.force_steps += force
    for i, token in {**decision.accept, **decision.edit}.items():
        block.tokens[i], block.state[i] = token, UNMASKED
    for i in decision.remask:
        block.tokens[i], block.state[i] = mask_id, MASKED
    block.remasked |= decision.remask
    block.written = {*decision.accept, *decision.edit}
    block.stepped = True
    block.ended = decision.ends
    block.top_tokens = decision.top_tokens


def apply_ordered(block: Block, step: insert_delete.Step, mask_id: int, *, force: bool) -> None:
    """Applies a step with edit tokens, which may move the content of any position."""
    before = insert_delete.text(block)
    block.history.append(before)
    block.post_steps += not block.original
    block.force_steps += force
    for i, token in step.took.items():
        block.chosen.setdefault(i, set()).add(token)
    free = block.free
    block.original = {i for i, (_, original) in zip(free, step.cells, strict=True) if original}
    for i, (token, _) in zip(free, step.cells, strict=True):
        block.tokens[i], block.state[i] = (mask_id, MASKED) if token is None else (token, UNMASKED)
    block.written = {i for i in block.filled if block.tokens[i] != before[i]}
    block.stepped = True
    block.ended = step.ends

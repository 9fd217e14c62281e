"""A naive decoder of `dmax` on the naive loop of `tests.oracle.decode`.

It is written from docs/research/decoding-rules.md#algorithm-dmax and docs/research/decoding-rules.md#soft-embeddings,
without code of the engine. Each step forwards the whole sequence again; embeddings of open blocks are mixed here.

Readings, beside those of `tests.oracle.decode`:

 1. A MASKED position's conf is its candidate's, which T > 0 draws. An UNMASKED one takes the likeliest token whatever
    the temperature. What embeddings are mixed from, and what is compared with 0.9, are likeliest tokens of this step's
    allowed logits and their plain T = 1 probabilities.
 2. The default of max_steps_per_block is B here: the number of steps in which the block must advance. The last one
    unmasks every position, applies its changes, and ends the block.
 3. A block that has ended and waits for its predecessor is ACTIVE: its UNMASKED positions are still what its own last
    step found, until it is TO_CACHE. Fixed positions are always plain.
 4. suppress_eos="confidence": an EOS that is a position's candidate ends the prefix, replaces nothing, and keeps the
    block from being sure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from tests.oracle.block import ACTIVE, UNMASKED, Block, Decision, Params, Shape, allowed
from tests.oracle.decode import Result, _Decode
from tests.oracle.draws import choose, softmax


class Model(Protocol):
    def embed(self, token: int) -> np.ndarray:
        """float64 [hidden]."""
        ...

    def look(self, rows: Sequence[np.ndarray]) -> np.ndarray:
        """Embeddings of the whole sequence so far -> float64 [len(rows), vocab], block-causal, before any ban."""
        ...


def decide(block: Block, logits: np.ndarray, p: Params, shape: Shape, *, force: bool, step: int) -> Decision:
    """The step of one ACTIVE block; as `tests.oracle.block.decide`."""
    if block.ended:
        return Decision(ends=True)
    rows = allowed(logits, p, shape)
    last = force and block.force_steps + 1 >= p.max_steps_per_block
    accept: dict[int, int] = {}
    edit: dict[int, int] = {}
    top_tokens: dict[int, list[tuple[int, float]]] = {}
    all_sure, passing = True, True
    for i in block.free:
        probs = softmax(rows[i])
        order = sorted(range(len(probs)), key=lambda token, row=rows[i]: (-row[token], token))
        top_tokens[i] = [(token, float(probs[token])) for token in order[: p.token_merge_top_k]]
        found = choose(rows[i], p.temperature, p.top_k, p.top_p, p.seed, block.start + i, step, p.min_p)
        candidate = found.token if i in block.masked else order[0]
        held_back = p.suppress_eos == "confidence" and candidate in shape.eos_ids
        all_sure = all_sure and probs[order[0]] >= 0.9 and not held_back
        if i in block.masked:
            passing = passing and found.conf >= p.accept_threshold and not held_back
            if passing or last or (force and i == block.masked[0]):
                accept[i] = candidate
        elif candidate != block.tokens[i] and not held_back:
            edit[i] = candidate
    full = len(accept) == len(block.masked)
    ends = full and (not (accept or edit) or all_sure or last)
    return Decision(accept=accept, edit=edit, ends=ends, top_tokens=top_tokens)


def mixed(model: Model, token: int, top_tokens: list[tuple[int, float]], p: Params, mask_id: int) -> np.ndarray:
    """The embedding of an UNMASKED position of an ACTIVE block."""
    known = sum(prob * model.embed(id) for id, prob in top_tokens)
    if p.token_merge_mode == "iter_smooth_topk":
        return model.embed(token) + p.token_merge_weight * known
    mask, rest = model.embed(mask_id), 1.0 - sum(prob for _, prob in top_tokens)
    out = known + rest * mask
    if not p.token_merge_renormalize:
        return out
    length = sum(prob * np.linalg.norm(model.embed(id)) for id, prob in top_tokens) + rest * np.linalg.norm(mask)
    return out * (length / (np.linalg.norm(out) + 1e-6))


class _DMax(_Decode):
    decide = staticmethod(decide)

    def __init__(self, model: Model, prompt: Sequence[int], p: Params, shape: Shape, pinned: Mapping[int, int]) -> None:
        self.model = model
        super().__init__(lambda ids: model.look([model.embed(id) for id in ids]), prompt, p, shape, pinned)

    def look(self) -> np.ndarray:
        rows = [self.model.embed(id) for id in self.sequence()]
        for block in self.blocks:
            for i, top_tokens in block.top_tokens.items():
                if block.status == ACTIVE and block.state[i] == UNMASKED:
                    rows[block.start + i] = mixed(self.model, block.tokens[i], top_tokens, self.p, self.shape.mask_id)
        return self.model.look(rows)


def decode_dmax(
    model: Model, prompt: Sequence[int], params: Params, shape: Shape, pinned: Mapping[int, int] | None = None
) -> Result:
    """Decode one request to its end. Raises AssertionError when a block takes more steps than it may."""
    blocks = -(-(len(prompt) + params.max_tokens - shape.first(len(prompt))) // shape.block)
    return _DMax(model, prompt, params, shape, pinned or {}).run(blocks * (params.max_steps_per_block + shape.block))

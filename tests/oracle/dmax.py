"""A naive decoder of `dmax` on the naive loop of `tests.oracle.decode`.

It is written from docs/research/decoding-rules.md#algorithm-dmax and docs/research/decoding-rules.md#soft-embeddings,
without code of the engine. Each step forwards the complete sequence again and computes the soft embeddings of open
blocks in plain Python.

Details that the rules leave open, in addition to those of `tests.oracle.decode`:

 1. Soft embeddings use the most probable tokens of this step's allowed logits, with their probabilities at T = 1. The
    comparison with 0.9 uses the same probabilities.
 2. A block that has ended stays ACTIVE while its predecessor is ACTIVE. Until it is TO_CACHE, its UNMASKED positions
    have the soft embeddings of its last step. FIXED positions always have ordinary embeddings.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from tests.oracle.block import ACTIVE, UNMASKED, Block, Decision, Params, Shape, allowed
from tests.oracle.decode import Result, _Decode
from tests.oracle.draws import choose, softmax


class Model(Protocol):
    def embed(self, token: int) -> np.ndarray:
        """Returns the embedding of a token, float64 [hidden]."""
        ...

    def look(self, rows: Sequence[np.ndarray]) -> np.ndarray:
        """Returns block-causal logits, float64 [len(rows), vocab], before any ban.

        `rows` are the embeddings of the complete sequence so far.
        """
        ...


def decide(block: Block, logits: np.ndarray, p: Params, shape: Shape, *, force: bool, step: int) -> Decision:
    """Decides on one step of one ACTIVE block. The arguments are those of `tests.oracle.block.decide`."""
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
    """Returns the soft embedding of an UNMASKED position of an ACTIVE block."""
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
    """Decodes one request to its end, see `tests.oracle.decode.decode`."""
    blocks = -(-(len(prompt) + params.max_tokens - shape.first(len(prompt))) // shape.block)
    return _DMax(model, prompt, params, shape, pinned or {}).run(blocks * (params.max_steps_per_block + shape.block))

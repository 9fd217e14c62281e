"""The likeliest token of each row and its probability, without logits in memory: each program keeps of its piece of the
vocabulary the largest logit, where it is, and the sum of the exponentials; a second kernel joins the pieces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from runtime.kernels.precision import wide
from runtime.kernels.tma import box, boxes, is_described
from runtime.kernels.triton_import import tl, triton

NONE = 2147483647  # an id that is none
SPARED = 2  # ids that the kernel can spare


class Likeliest(NamedTuple):
    """Of each row, [n]."""

    token: torch.Tensor  # int64
    conf: torch.Tensor  # its softmax probability
    logit: torch.Tensor  # its own


def likeliest_reference(
    hidden: torch.Tensor, weight: torch.Tensor, *, mask_id: int | None, max_token_id: int, spared: Sequence[int] = (),
    live: torch.Tensor | None = None,
) -> Likeliest:  # fmt: skip
    """hidden [n, inputs], weight [vocab, inputs] -> the likeliest token (of equals the lowest id), numbers as float32
    (float64 for float64), among the ids up to `max_token_id` and those `spared` beyond it; the mask, where there is
    one, is not among them unless it is spared. A row without any has -inf and a probability that is not finite. `live`
    int32 [1]: how many rows there are; of those behind them, which are dead, anything comes."""
    up = wide(hidden.dtype)
    logits = torch.nn.functional.linear(hidden.to(up), weight.to(up))
    ids = torch.arange(len(weight), device=hidden.device)
    banned = ids > max_token_id
    if mask_id is not None:
        banned |= ids == mask_id
    for token in spared:
        banned &= ids != token
    logits = logits.masked_fill(banned, float("-inf"))
    token = logits.argmax(dim=1)  # the first of equal values
    logit = logits.gather(1, token[:, None])[:, 0]
    return Likeliest(token, (logit - logits.logsumexp(dim=1)).exp(), logit)


class Cut(NamedTuple):
    """How a program's product is cut. `rest`: rows behind the last whole tile that its program does as well, so that
    the weights are read once for all of them; `together`: loads in flight of such a program."""

    rows: int
    tokens: int  # of the vocabulary
    depth: int
    warps: int
    stages: int
    turned: bool  # the weights are the first operand
    rest: int = 0
    together: int = 0


def cut(rows: int, inputs: int, element_size: int, *, fixed: bool = False) -> Cut:
    """Few rows: the weights' bytes are what counts, and the matrix unit takes 64 of them at once. `fixed`: a piece of
    the vocabulary is summed up alike however many rows there are."""
    if element_size == 4:
        chosen = Cut(16, 32, 32, 4, 2, True)
    elif fixed:
        chosen = Cut(16 if rows <= 16 else 64 if rows <= 64 else 128, 128, 64, 4, 4 if rows <= 64 else 3, True)
    elif rows <= 16:
        chosen = Cut(16, 64, 128, 4, 4, True)
    elif rows <= 64:
        chosen = Cut(64, 128, 64, 4, 4, True)
    elif 160 < rows <= 192:
        chosen = Cut(128, 128, 64, 8, 3, False, rest=64, together=4)
    elif 192 < rows <= 256:
        chosen = Cut(256, 128, 64, 8, 4, False)
    else:
        chosen = Cut(128, 128, 64, 4, 3, False, rest=32, together=3)
    return chosen._replace(depth=min(chosen.depth, max(16, triton.next_power_of_2(inputs))))


@triton.jit
def _keep(
    acc, line, live, rows, piece, best_ptr, token_ptr, total_ptr, vocab, mask_id, max_id, spared_a, spared_b,
    TOKENS: tl.constexpr, TURNED: tl.constexpr,
):  # fmt: skip
    """What is kept of a piece of the logits of the rows `line`, to [pieces, rows]."""
    token = piece * TOKENS + tl.arange(0, TOKENS)
    allowed = (token <= max_id) & (token != mask_id) | (token == spared_a) | (token == spared_b)
    allowed = allowed & (token < vocab)
    if TURNED:
        logits = tl.where(allowed[:, None], acc, float("-inf"))
        best = tl.max(logits, 0)
        found = tl.min(tl.where(logits == best[None, :], token[:, None], 2147483647), 0)
        anchor = tl.where(best == float("-inf"), 0.0, best)
        total = tl.sum(tl.exp(logits - anchor[None, :]), 0)
    else:
        logits = tl.where(allowed[None, :], acc, float("-inf"))
        best = tl.max(logits, 1)
        found = tl.min(tl.where(logits == best[:, None], token[None, :], 2147483647), 1)
        anchor = tl.where(best == float("-inf"), 0.0, best)
        total = tl.sum(tl.exp(logits - anchor[:, None]), 1)
    at = piece.to(tl.int64) * rows + line
    tl.store(best_ptr + at, best, mask=line < live)
    tl.store(token_ptr + at, found, mask=line < live)
    tl.store(total_ptr + at, total, mask=line < live)


@triton.jit(do_not_specialize=["rows", "vocab", "mask_id", "max_id", "spared_a", "spared_b"])
def _pieces(
    hidden, rest, weights, live_ptr, best_ptr, token_ptr, total_ptr, rows, vocab, mask_id, max_id, spared_a, spared_b,
    INPUTS: tl.constexpr, ROWS: tl.constexpr, TOKENS: tl.constexpr, DEPTH: tl.constexpr, STAGES: tl.constexpr,
    TURNED: tl.constexpr, REST: tl.constexpr, TOGETHER: tl.constexpr, COUNTED: tl.constexpr, DESCRIBED: tl.constexpr,
):  # fmt: skip
    """One program: ROWS rows, and up to REST more if they are the last, and TOKENS of the vocabulary. COUNTED: how many
    rows there are is told by `live_ptr`. `rest`: REST rows of `hidden` a box, where it is described."""
    row, piece = tl.program_id(0) * ROWS, tl.program_id(1)
    first = piece * TOKENS
    live = rows
    if COUNTED:
        live = tl.load(live_ptr)
    left = live - row
    if left <= 0:
        return
    if REST > 0:
        if (row > 0) & (left <= REST):  # the program before does them
            return
        if (left > ROWS) & (left <= ROWS + REST):
            acc = tl.zeros([TOKENS, ROWS], tl.float32)
            more = tl.zeros([TOKENS, REST], tl.float32)
            for start in tl.range(0, INPUTS, DEPTH, num_stages=TOGETHER):
                weight = box(weights, first, start, vocab, INPUTS, TOKENS, DEPTH, DESCRIBED)
                x = box(hidden, row, start, rows, INPUTS, ROWS, DEPTH, DESCRIBED)
                y = box(rest, row + ROWS, start, rows, INPUTS, REST, DEPTH, DESCRIBED)
                acc = tl.dot(weight, tl.trans(x), acc, input_precision="ieee")
                more = tl.dot(weight, tl.trans(y), more, input_precision="ieee")
            line = row + tl.arange(0, ROWS)
            _keep(
                acc, line, live, rows, piece, best_ptr, token_ptr, total_ptr, vocab, mask_id, max_id, spared_a,
                spared_b, TOKENS, True,
            )  # fmt: skip
            line = row + ROWS + tl.arange(0, REST)
            _keep(
                more, line, live, rows, piece, best_ptr, token_ptr, total_ptr, vocab, mask_id, max_id, spared_a,
                spared_b, TOKENS, True,
            )  # fmt: skip
            return
    if TURNED:
        acc = tl.zeros([TOKENS, ROWS], tl.float32)
    else:
        acc = tl.zeros([ROWS, TOKENS], tl.float32)
    for start in tl.range(0, INPUTS, DEPTH, num_stages=STAGES):
        x = box(hidden, row, start, rows, INPUTS, ROWS, DEPTH, DESCRIBED)
        weight = box(weights, first, start, vocab, INPUTS, TOKENS, DEPTH, DESCRIBED)
        if TURNED:
            acc = tl.dot(weight, tl.trans(x), acc, input_precision="ieee")
        else:
            acc = tl.dot(x, tl.trans(weight), acc, input_precision="ieee")
    line = row + tl.arange(0, ROWS)
    _keep(
        acc, line, live, rows, piece, best_ptr, token_ptr, total_ptr, vocab, mask_id, max_id, spared_a, spared_b,
        TOKENS, TURNED,
    )  # fmt: skip


@triton.jit(do_not_specialize=["rows", "pieces"])
def _join(
    live_ptr, best_ptr, token_ptr, total_ptr, out_ptr, conf_ptr, logit_ptr, rows, pieces,
    ROWS: tl.constexpr, PIECES: tl.constexpr, COUNTED: tl.constexpr,
):  # fmt: skip
    """One program: ROWS rows, PIECES pieces at a time. Of dead rows nothing was kept; theirs is token 0, and surely."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    live = rows
    if COUNTED:
        live = tl.load(live_ptr)
    ok = row < live
    best = tl.full([ROWS], float("-inf"), tl.float32)
    token = tl.full([ROWS], 2147483647, tl.int32)
    total = tl.zeros([ROWS], tl.float32)
    for first in range(0, pieces, PIECES):
        piece = first + tl.arange(0, PIECES)
        at = piece.to(tl.int64)[:, None] * rows + row[None, :]
        inside = (piece < pieces)[:, None] & ok[None, :]
        bests = tl.load(best_ptr + at, mask=inside, other=float("-inf"))
        tokens = tl.load(token_ptr + at, mask=inside, other=2147483647)
        totals = tl.load(total_ptr + at, mask=inside, other=0.0)
        here = tl.maximum(tl.max(bests, 0), best)
        found = tl.min(tl.where(bests == here[None, :], tokens, 2147483647), 0)
        token = tl.minimum(tl.where(best == here, token, 2147483647), found)
        anchor = tl.where(here == float("-inf"), 0.0, here)
        total = total * tl.exp(best - anchor) + tl.sum(totals * tl.exp(bests - anchor[None, :]), 0)
        best = here
    tl.store(out_ptr + row, tl.where(ok, token, 0).to(tl.int64), mask=row < rows)
    tl.store(conf_ptr + row, 1.0 / tl.where(ok, total, 1.0), mask=row < rows)
    tl.store(logit_ptr + row, tl.where(ok, best, 0.0), mask=row < rows)


def likeliest(
    hidden: torch.Tensor, weight: torch.Tensor, *, mask_id: int | None, max_token_id: int, spared: Sequence[int] = (),
    live: torch.Tensor | None = None, fixed: bool = False,
) -> Likeliest:  # fmt: skip
    """`likeliest_reference` for contiguous float32, float16 and bfloat16 on a GPU; sums in float32. `fixed`: a row's
    bits do not depend on the others."""
    assert len(spared) <= SPARED
    (rows, inputs), vocab = hidden.shape, len(weight)
    how = cut(rows, inputs, hidden.element_size(), fixed=fixed)
    pieces = triton.cdiv(vocab, how.tokens)
    best, total = hidden.new_empty(2, pieces, rows, dtype=torch.float32)
    found = hidden.new_empty(pieces, rows, dtype=torch.int32)
    given, weights = boxes(hidden, how.rows, how.depth), boxes(weight, how.tokens, how.depth)
    rest = boxes(hidden, how.rest or how.rows, how.depth)
    if not (is_described(given) and is_described(weights)):
        given, rest, weights = hidden, hidden, weight
    first, second = (*spared, NONE, NONE)[:SPARED]
    told = found if live is None else live
    _pieces[(triton.cdiv(rows, how.rows), pieces)](
        given, rest, weights, told, best, found, total, rows, vocab, NONE if mask_id is None else mask_id,
        max_token_id, first, second, INPUTS=inputs, ROWS=how.rows, TOKENS=how.tokens, DEPTH=how.depth,
        STAGES=how.stages, TURNED=how.turned, REST=how.rest, TOGETHER=how.together, COUNTED=live is not None,
        DESCRIBED=is_described(weights), num_warps=how.warps,
    )  # fmt: skip
    token = hidden.new_empty(rows, dtype=torch.int64)
    conf, logit = hidden.new_empty(2, rows, dtype=torch.float32)
    _join[(triton.cdiv(rows, 4),)](
        told, best, found, total, token, conf, logit, rows, pieces, ROWS=4, PIECES=256, COUNTED=live is not None,
        num_warps=4,
    )  # fmt: skip
    return Likeliest(token, conf, logit)

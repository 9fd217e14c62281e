"""What attention's kernels share of a round of keys: its pages, and what its scores make of a lane's softmax."""

from __future__ import annotations

from runtime.kernels.triton_import import tl, triton

LOG2_E = 1.4426950408889634


@triton.jit
def pages_of(pages_at, key, end, PAGE: tl.constexpr):
    """Of a key, or each; asked page by page, so that the compiler knows keys of a page to lie as evenly as they do."""
    return tl.load(pages_at + key // PAGE, mask=key // PAGE * PAGE < end, other=0)


@triton.jit
def weigh(scores, best, total, scale_log2):
    """Of a round's scores [lanes, keys] the weights, by the largest score so far; by how much whatever earlier rounds
    summed decays; and the largest score and the sum of weights, [lanes], with this round."""
    new_best = tl.maximum(best, tl.max(scores, 1))
    # a row that has seen no key yet has -inf here, and -inf - -inf would be NaN
    anchor = tl.where(new_best == float("-inf"), 0.0, new_best)
    weights = tl.exp2(scores * scale_log2 - (anchor * scale_log2)[:, None])
    decay = tl.exp2((best - anchor) * scale_log2)  # 1 sharp after a round that a row does not see, whatever is fused
    return weights, decay, new_best, total * decay + tl.sum(weights, 1)

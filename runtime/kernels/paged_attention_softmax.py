"""Operations of the attention kernels per KV block: page lookup and online softmax."""

from __future__ import annotations

from runtime.kernels.triton_import import tl, triton

LOG2_E = 1.4426950408889634


@triton.jit
def load_page_ids(pages_at, key, end, PAGE: tl.constexpr):
    """Returns the page of each key; separate per page so that the compiler knows the contiguity of a page's keys."""
    return tl.load(pages_at + key // PAGE, mask=key // PAGE * PAGE < end, other=0)


@triton.jit
def online_softmax_step(scores, m_i, l_i, scale_log2):
    """One step of online softmax (arXiv 1805.02867).

    Args:
        scores: [BLOCK_M, keys] of a KV block. m_i, l_i: running maximum and sum of weights, [BLOCK_M].

    Returns:
        The block's weights relative to the new maximum, the factor alpha that rescales earlier sums, the new m_i and
        l_i.
    """
    m_new = tl.maximum(m_i, tl.max(scores, 1))
    # -inf before the first visible key, and -inf - -inf would be NaN
    anchor = tl.where(m_new == float("-inf"), 0.0, m_new)
    p = tl.exp2(scores * scale_log2 - (anchor * scale_log2)[:, None])
    alpha = tl.exp2((m_i - anchor) * scale_log2)  # exactly 1 after a KV block that a row does not see
    return p, alpha, m_new, l_i * alpha + tl.sum(p, 1)

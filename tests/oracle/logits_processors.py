"""Logits processors of a request, id by id in plain Python (docs/guide/decoding.md#logits-processors).

Details of the rules that oracle and engine interpret in the same way:

* All processors use prompt and answer as they are before the step.
* The tokens of the answer are those of its UNMASKED and given positions below its end, in any block.
* EOS and stop tokens are never counted. An UNMASKED position below the end does not count its own token.
* The bias is added first. The penalties follow in the order repetition, frequency, presence.
* Logits of banned ids stay -inf.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from tests.oracle.block import Params, Shape


def shaped(
    rows: np.ndarray, first: int, prompt: Sequence[int], answer: Sequence[int | None], filled: Sequence[bool],
    p: Params, shape: Shape,
) -> np.ndarray:  # fmt: skip
    """Returns the processed logits [n, vocab] of the positions from `first` on.

    Args:
        answer: Token of each position of the answer below its end; None if MASKED.
        filled: Whether the position is UNMASKED, and so not given.
    """
    out = np.array(rows, dtype=np.float64)
    ends = shape.eos_ids | set(p.stop_token_ids)
    for i, row in enumerate(out):
        at = first + i - len(prompt)
        here = {at} if 0 <= at < len(answer) and filled[at] else set()
        counts = Counter(t for n, t in enumerate(answer) if t is not None and t not in ends and n not in here)
        seen = {t for t in prompt if t not in ends} | set(counts)
        for token, value in p.logit_bias:
            row[token] += value
        for token in seen if p.repetition_penalty != 1 else ():
            row[token] = row[token] / p.repetition_penalty if row[token] > 0 else row[token] * p.repetition_penalty
        for token, count in counts.items():
            row[token] = row[token] - p.frequency_penalty * count - p.presence_penalty
        if at < p.min_tokens:
            row[sorted(ends)] = -np.inf
    return out

"""Constants that all grammars of an engine share."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # frontends do not import numpy without a grammar
    import numpy as np
    import numpy.typing as npt

    TokenBitmask = npt.NDArray[np.int32]  # packed, one bit per token


@dataclass(frozen=True)
class GrammarFacts:
    """Constants that all grammars of an engine share.

    Attributes:
        eos: EOS ids, at least one.
        permitted: int32 [mask_len]; bits of the tokens that the model may generate.
    """

    eos: tuple[int, ...]
    permitted: TokenBitmask

    @classmethod
    def of(cls, *, vocab_size: int, max_token_id: int, mask_id: int | None, eos: Iterable[int]) -> GrammarFacts:
        import numpy as np

        allowed = np.zeros(-(-vocab_size // 32) * 32, dtype=np.bool_)
        allowed[: max_token_id + 1] = True
        if mask_id is not None:
            allowed[mask_id] = False
        return cls(tuple(eos), np.packbits(allowed, bitorder="little").view(np.int32))

    @property
    def mask_len(self) -> int:
        return len(self.permitted)

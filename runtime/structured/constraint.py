"""How far one request's answer has come in its grammar, and what may come next."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a frontend loads neither arrays nor the library until a grammar is asked for
    import numpy as np
    import numpy.typing as npt
    from llguidance import LLMatcher

    Words = npt.NDArray[np.int32]  # a bit a token


@dataclass(frozen=True)
class Facts:
    """What holds for every grammar of an engine.

    Attributes:
        eos: the ids that end an answer, at least one. permitted: [words] the tokens that the model may write at all.
    """

    eos: tuple[int, ...]
    permitted: Words

    @classmethod
    def of(cls, *, vocab_size: int, max_token_id: int, mask_id: int | None, eos: Iterable[int]) -> Facts:
        import numpy as np

        allowed = np.zeros(-(-vocab_size // 32) * 32, dtype=np.bool_)
        allowed[: max_token_id + 1] = True
        if mask_id is not None:
            allowed[mask_id] = False
        return cls(tuple(eos), np.packbits(allowed, bitorder="little").view(np.int32))

    @property
    def words(self) -> int:
        return len(self.permitted)


class Constraint:
    """One request's; it has taken every token of the answer so far, in order.

    Attributes:
        ended: an end of sequence was taken. failed: why nothing can be taken any more, "" as long as something can.
    """

    __slots__ = ("ended", "facts", "failed", "matcher")

    def __init__(self, matcher: LLMatcher, facts: Facts) -> None:
        self.matcher = matcher
        self.facts = facts
        self.ended = False
        self.failed = ""

    def forced(self) -> list[int]:
        """Tokens that come next whatever the model says; where the answer must end, the end of sequence."""
        if self._fails():
            return []
        if self.matcher.is_stopped():
            return [self.facts.eos[0]]
        return list(self.matcher.compute_ff_tokens())

    def fill(self, row: Words) -> None:
        """Write which tokens may come next: ``row`` [words], contiguous. All are 0 where it fails."""
        self.matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
        row &= self.facts.permitted
        if not self._fails() and not row.any():
            self.failed = "the grammar goes on with what this model has no token for"
        if self.failed:
            row[:] = 0

    def take(self, token: int) -> None:
        """A token that may come next."""
        if token in self.facts.eos:
            self.ended = True
        elif not self.matcher.consume_token(token):
            self._fails()

    def _fails(self) -> bool:
        if not self.failed and self.matcher.is_error():
            self.failed = sentence(self.matcher.get_error())
        return bool(self.failed)


def sentence(error: str) -> str:
    """The first line of the library's words, without the state that it shows below."""
    words = " ".join(error.split("<state>")[0].split("\n   1 |")[0].split())
    return words if len(words) <= 200 else words[:197] + "..."

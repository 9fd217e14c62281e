"""How far one request's answer has come in its grammar, and what may come next."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from runtime.structured_output.limits import MaskLimits

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
        seconds: CPU time that the grammar has taken. limits: of that time. overrun: why it ended at them, "" if not.
    """

    __slots__ = ("_forced", "_tokens", "ended", "facts", "failed", "limits", "matcher", "overrun", "seconds")

    def __init__(self, matcher: LLMatcher, facts: Facts, limits: MaskLimits | None = None) -> None:
        self.matcher = matcher
        self.facts = facts
        self.limits = limits or MaskLimits()
        self.overrun = ""
        self.ended = False
        self.failed = ""
        self.seconds = 0.0
        self._tokens = 0
        self._forced: deque[int] = deque()  # computed at once, as that may take as long for one as for all of them

    def forced(self) -> list[int]:
        """Tokens that come next whatever the model says; where the answer must end, the end of sequence."""
        if self._fails():
            return []
        if self.matcher.is_stopped():
            return [self.facts.eos[0]]
        if not self._forced:
            began = time.thread_time()
            self._forced.extend(self.matcher.compute_ff_tokens())
            self._spend(began)
        return list(self._forced)

    def fill(self, row: Words) -> None:
        """Write which tokens may come next: ``row`` [words], contiguous. All are 0 where it fails."""
        began = time.thread_time()
        self.matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
        self._spend(began)
        row &= self.facts.permitted
        if not self._fails() and not row.any():
            self.failed = "the grammar goes on with what this model has no token for"
        if self.failed:
            row[:] = 0

    def take(self, token: int) -> None:
        """A token that may come next."""
        if self._forced and self._forced.popleft() != token:
            self._forced.clear()
        self._tokens += 1
        if token in self.facts.eos:
            self.ended = True
            return
        began = time.thread_time()
        fits = self.matcher.consume_token(token)
        self._spend(began)
        if not fits:
            self._fails()

    def _spend(self, began: float) -> None:
        """Counts the CPU time since `began`."""
        self.seconds += time.thread_time() - began
        if self.seconds > self.limits.seconds + self.limits.token_seconds * self._tokens:
            self.overrun = self.overrun or self.limits.sentence()

    def _fails(self) -> bool:
        if not self.failed and self.matcher.is_error():
            self.failed = sentence(self.matcher.get_error())
        self.failed = self.failed or self.overrun
        return bool(self.failed)


def sentence(error: str) -> str:
    """The first line of the library's words, without the state that it shows below."""
    words = " ".join(error.split("<state>")[0].split("\n   1 |")[0].split())
    return words if len(words) <= 200 else words[:197] + "..."

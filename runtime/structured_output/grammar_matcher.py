"""The state of one request in its grammar, and the tokens that may come next."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # frontends import neither numpy nor the library without a grammar
    from llguidance import LLMatcher

    from runtime.structured_output.gbnf import GrammarTraits
    from runtime.structured_output.grammar_facts import GrammarFacts, TokenBitmask
    from runtime.structured_output.witness import OutputEnd, Remembered


SEARCH_SHARE = 0.5  # CPU time that searches for ends of an output may take, as a share of that for masks


@dataclass(frozen=True)
class MaskLimits:
    """CPU time that the grammar of one request may take in the engine's thread, which all requests share.

    Masks of schemas that clients send take 0.02 to 0.2 ms per token, those of a bounded host name 1.4 ms. This was
    measured with a vocabulary of 100,000 tokens on a busy core at 2.5 GHz.

    Attributes:
        seconds: Per request.
        token_seconds: Added per token.
    """

    seconds: float = 0.25
    token_seconds: float = 0.002

    def message(self) -> str:
        """Returns the error of a request that exceeds the limits."""
        more = f" and {self.token_seconds * 1000:g} ms per token" if self.token_seconds else ""
        return f"it takes more than {self.seconds:g} s{more} of CPU time to apply; send a simpler one"


class GrammarMatcher:
    """Matcher of one request. It has accepted every token of the output so far, in order.

    Attributes:
        finished: Whether an EOS token was accepted.
        error: Why no further token can be accepted; "" if one can.
        cpu_seconds: CPU time that the grammar has taken.
        limits: Limits of that time.
        overrun: Why the limits ended it; "" if they did not.
        end: Ends the output within its maximum number of tokens; None if it may be cut.
        origin: Traits of the grammar, and ends that were found for its outputs; None if it was not cached.
        partial: Whether the grammar covers only a part of the output, which ends as soon as the matcher may end. If it
            fails, the output goes on without it.
    """

    __slots__ = (
        "_end_seconds", "_forced", "_tokens", "cpu_seconds", "end", "error", "facts", "finished", "limits", "matcher",
        "origin", "overrun", "partial",
    )  # fmt: skip

    def __init__(
        self, matcher: LLMatcher, facts: GrammarFacts, limits: MaskLimits | None = None,
        origin: tuple[GrammarTraits, Remembered] | None = None,
    ) -> None:  # fmt: skip
        self.matcher = matcher
        self.origin = origin
        self.facts = facts
        self.limits = limits or MaskLimits()
        self.overrun = ""
        self.end: OutputEnd | None = None
        self.partial = False
        self.finished = False
        self.error = ""
        self.cpu_seconds = 0.0
        self._end_seconds = 0.0  # CPU time of `end`
        self._tokens = 0
        self._forced: deque[int] = deque()  # computed once: one token may take as long as all of them

    def partial_at(self, matcher: LLMatcher) -> GrammarMatcher:
        """Returns a matcher of a part of the output, at another state of this grammar. Limits of time are for both."""
        made = GrammarMatcher(matcher, self.facts, self.limits)
        made.partial = True
        made.cpu_seconds, made._tokens = self.cpu_seconds, self._tokens
        return made

    def forced_tokens(self) -> list[int]:
        """Returns the tokens that the grammar forces next. If the output must end, this is one EOS token."""
        if self._has_failed():
            return []
        if self.matcher.is_stopped():
            return [self.facts.eos[0]]
        if not self._forced:
            began = time.thread_time()
            self._forced.extend(self.matcher.compute_ff_tokens())
            self._spend(began)
        return list(self._forced)

    def fill_bitmask(self, row: TokenBitmask) -> None:
        """Writes the bitmask of allowed tokens into `row`, int32 [mask_len], contiguous.

        After an error it is 0, or that of all tokens with `partial`.
        """
        if not self.error:
            began = time.thread_time()
            self.matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
            self._spend(began)
            row &= self.facts.permitted
            if not self._has_failed() and not row.any():
                self.error = "the grammar requires text that this model has no token for"
        if self.error:
            row[:] = self.facts.permitted if self.partial else 0

    def accept_token(self, token: int, left: int = 0) -> int:
        """Advances by `token`, which must be allowed, or by another token if the output could not end in time after it.

        Args:
            token: A token id. After an error it has no effect.
            left: Number of tokens that the output may still have, this one included. Only used with an `end`.

        Returns:
            The accepted token.
        """
        began = time.thread_time()
        if self.end is not None:
            token = self.end.choose(self.matcher, token, left, SEARCH_SHARE * self._max_seconds - self._end_seconds)
            self._end_seconds += time.thread_time() - began
            began = time.thread_time()
        if self._forced and self._forced.popleft() != token:
            self._forced.clear()
        self._tokens += 1
        if token in self.facts.eos:
            self.finished = True
            return token
        if self.error:
            return token
        fits = self.matcher.consume_token(token)
        self._spend(began)
        if not fits:
            self._has_failed()
        return token

    @property
    def has_ended(self) -> bool:
        """Whether it constrains no further token, because it failed or the part of the output is complete."""
        return bool(self.error) or (self.partial and self.matcher.is_accepting())

    @property
    def is_complete(self) -> bool:
        """Whether the output has its format, and ended by itself or by a witness.

        A format that any text has says nothing about the end.
        """
        if self.end is None or self.error:
            return False
        return bool(self.end.first or self.end.reason or self.matcher.is_stopped()) and self.matcher.is_accepting()

    @property
    def _max_seconds(self) -> float:
        return self.limits.seconds + self.limits.token_seconds * self._tokens

    def _spend(self, began: float) -> None:
        """Adds the CPU time since `began`, and checks the limits."""
        self.cpu_seconds += time.thread_time() - began
        if self.cpu_seconds > self._max_seconds:
            self.overrun = self.overrun or self.limits.message()

    def _has_failed(self) -> bool:
        if not self.error and self.matcher.is_error():
            self.error = summarize_error(self.matcher.get_error())
        self.error = self.error or self.overrun
        return bool(self.error)


def summarize_error(error: str) -> str:
    """Returns the library's error in one line of at most 200 characters, without the state that follows it."""
    line = " ".join(error.split("<state>")[0].split("\n   1 |")[0].split())
    return line if len(line) <= 200 else line[:197] + "..."

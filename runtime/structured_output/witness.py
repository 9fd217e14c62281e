"""Witnesses: short sequences of tokens with which an output may legally end.

A grammar alone does not end an output: a model may write inside a string until `max_tokens`. A witness is a proof that
the output can end from here. As long as it fits what is left of `max_tokens`, the model chooses its own tokens. Else
those of the witness are taken, so the output ends in the format.

The grammar engine has no such search. This one walks through copies of a matcher, and reads their bitmasks.
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

    from runtime.structured_output.grammar_facts import GrammarFacts

FIRST_STATES, FIRST_SECONDS = 3_000, 0.5  # effort for the first witness of a grammar; a state takes 20 to 60 us
NEXT_STATES, NEXT_SECONDS = 1_000, 0.1  # effort for one while decoding, in the engine's thread; most need 30 states
FREE_BYTES = 40  # more first bytes of allowed tokens are text that the grammar hardly restricts
FOLLOWED_BYTES = 6  # of them are followed there; those that the grammar restricts most lead out of the text
MAX_BITMASKS = 256  # whose selected tokens are remembered
MAX_SPECIAL = 8  # special tokens that are followed
_QUOTE, _BACKSLASH = b'"\\'
CLOSING = b'}]"'  # first bytes to follow first
MAX_TOKENS = 4096  # of a witness
LOOP_VISITS = 24  # visits of states with the same bitmask after which another token is followed
MAX_REMEMBERED = 4  # remembered ends per token
MAX_PERIOD = 8  # tokens of a repeated sequence
MAX_FRACTION = 17  # digits after the point, enough for every double


class Effort:
    """Limits of a search: the number of states, and CPU time of the thread for states that take long."""

    def __init__(self, states: int, seconds: float) -> None:
        self._states = states
        self._until = time.thread_time() + seconds

    def spend(self) -> bool:
        """Counts a state. Returns whether the search may go on."""
        self._states -= 1
        return self._states >= 0 and time.thread_time() < self._until


def _has(mask: bytes, token: int) -> bool:
    return bool(mask[token >> 3] >> (token & 7) & 1)


class WitnessSearch:
    """Searches for witnesses with one tokenizer.

    Attributes:
        facts: constants of the engine.
        texts: bytes of each token, b"" for special tokens.
        letter: id of a token that is a letter, which no number contains; None if there is none.
    """

    def __init__(self, tokenizer: LLTokenizer, facts: GrammarFacts) -> None:
        self.facts = facts
        size = tokenizer.vocab_size
        texts = [b"" if tokenizer.is_special_token(i) else tokenizer.decode_bytes([i]) for i in range(size)]
        self.texts = texts
        self._sizes = np.array([len(text) for text in texts])
        self._first = np.array([text[0] if text else 256 for text in texts])  # 256: special, or without text
        self._counts = np.bincount(self._first, minlength=257)
        self._closing = np.zeros(256, dtype=np.int64)
        self._closing[list(CLOSING)] = range(len(CLOSING), 0, -1)
        self.letter = texts.index(b"a") if b"a" in texts else None
        self._letters = np.array([text.isalpha() for text in texts])
        self._eos = np.array(facts.eos)
        self._row = np.zeros(facts.mask_len, dtype=np.int32)
        self._candidates: OrderedDict[bytes, list[int]] = OrderedDict()  # by bitmask

    def first(self, matcher: LLMatcher) -> tuple[int, ...] | None:
        """Returns a short output of a compiled grammar, without an EOS; None if none is found."""
        return self.find(matcher, MAX_TOKENS, effort=Effort(FIRST_STATES, FIRST_SECONDS))

    def output_end(self, witness: Sequence[int], remembered: Remembered, *, max_run: int, max_length: int) -> OutputEnd:
        """Returns what ends an output with a first witness in time. See `OutputEnd` for the other arguments."""
        return OutputEnd(self, witness, remembered, max_run=max_run, max_length=max_length)

    def find(
        self, matcher: LLMatcher, max_tokens: int, known: Sequence[int] = (), *, effort: Effort
    ) -> tuple[int, ...] | None:
        """Returns an end without an EOS, shortened as far as the effort allows; None if none of `max_tokens` is found.

        Args:
            matcher: state of the output; it is not changed.
            max_tokens: maximum length.
            known: a witness of an earlier state, which the end may rejoin. Then it is only shortened if it is too long.
            effort: what the search may take.
        """
        path = self._roll_out(matcher, (), known, MAX_TOKENS, effort)
        if path is not None and (not known or len(path) > max_tokens):
            before = None
            while path != before:
                before, path = path, self._shorten(matcher, path, effort)
        return path if path is not None and len(path) <= max_tokens else None

    def _roll_out(
        self, matcher: LLMatcher, begin: tuple[int, ...], known: Sequence[int], longest: int, effort: Effort
    ) -> tuple[int, ...] | None:
        """Follows `begin`, and then one token per state, to an end or to a state from which a part of `known` ends."""
        state = matcher.deep_copy()
        if not state.consume_tokens(list(begin)):
            return None
        path = list(begin)
        visits: dict[bytes, int] = {}
        while not state.is_accepting():
            mask = self._mask(state)
            for i in range(max(0, len(path) + len(known) - longest), len(known)):
                if _has(mask, known[i]) and self.fits(state, known[i:]):
                    return (*path, *known[i:])
            following = self._follow(mask)
            if not following or len(path) >= longest or not effort.spend():
                return None
            visits[mask] = number = visits.get(mask, 0) + 1
            token = following[number // LOOP_VISITS % len(following)]
            if not state.consume_token(token):
                return None
            path.append(token)
        return tuple(path) if len(path) <= longest else None

    def _shorten(self, matcher: LLMatcher, path: tuple[int, ...], effort: Effort) -> tuple[int, ...]:
        """Returns an end that differs from `path` where another token leads to a shorter one."""
        state = matcher.deep_copy()
        i = 0
        while i < len(path):
            for token in self._follow(self._mask(state)):
                if token == path[i]:
                    continue
                rest = self._roll_out(state, (token,), path[i + 2 :], len(path) - i - 1, effort)
                path = path if rest is None else (*path[:i], *rest)
            state.consume_token(path[i])
            i += 1
        return path

    def _mask(self, state: LLMatcher) -> bytes:
        """Returns the bitmask of the tokens that may follow."""
        self._row[:] = 0
        state.unsafe_compute_mask_ptr(self._row.ctypes.data, self._row.nbytes)
        self._row &= self.facts.permitted
        return self._row.tobytes()

    def fits(self, matcher: LLMatcher, tokens: Sequence[int]) -> bool:
        """Returns whether an output may continue with `tokens`, and then end."""
        whole = [*tokens, self.facts.eos[0]]
        return int(matcher.validate_tokens(whole)) == len(whole)

    def _follow(self, mask: bytes) -> list[int]:
        """Returns the tokens of a bitmask to follow, those that probably lead to an end first."""
        found = self._candidates.get(mask)
        if found is None:
            bits = np.unpackbits(np.frombuffer(mask, dtype=np.uint8), bitorder="little")
            allowed = np.flatnonzero(bits)
            found = list(self._select(allowed[~np.isin(allowed, self._eos)]))
            self._candidates[mask] = found
            if len(self._candidates) > MAX_BITMASKS:
                self._candidates.popitem(last=False)
        return found

    def _select(self, allowed: npt.NDArray[np.int64]) -> Iterator[int]:
        first = self._first[allowed]
        yield from allowed[first == 256][:MAX_SPECIAL].tolist()
        allowed = allowed[first < 256]
        if not len(allowed):
            return
        if (forced := self._forced(allowed)) is not None:
            yield forced
            return
        counts = np.bincount(self._first[allowed], minlength=256)[:256]
        groups = np.flatnonzero(counts)
        groups = groups[np.lexsort((counts[groups] / self._counts[groups], -self._closing[groups]))]
        if len(groups) > FREE_BYTES:
            closing = int(np.count_nonzero(self._closing[groups]))
            letters = allowed[self._letters[allowed]]
            if not closing and len(letters):
                yield self._longest(letters)  # a text may have a minimum length
            groups = groups[: closing + FOLLOWED_BYTES]
        for group in groups:
            same = allowed[self._first[allowed] == group]
            shortest, longest = int(same[np.argmin(self._sizes[same])]), self._longest(same)
            yield shortest
            if longest != shortest:
                yield longest

    def _longest(self, tokens: npt.NDArray[np.int64]) -> int:
        return int(tokens[np.argmax(self._sizes[tokens])])

    def _forced(self, allowed: npt.NDArray[np.int64]) -> int | None:
        """Returns the longest of the allowed tokens if all others are beginnings of it."""
        longest = self._longest(allowed)
        text = self.texts[longest]
        if len(allowed) > len(text) or not all(text.startswith(self.texts[token]) for token in allowed.tolist()):
            return None
        return longest


class StringLength:
    """Counts the characters of the string at the end of a JSON text.

    Args:
        limit: number of characters of a full string.
    """

    __slots__ = ("_escapes", "_length", "_limit")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._length: int | None = None  # None: outside of a string
        self._escapes = False

    @property
    def is_full(self) -> bool:
        return self._length is not None and self._length >= self._limit

    def add(self, text: bytes) -> None:
        """Adds the bytes of a token, which may end inside a character or an escape."""
        for byte in text:
            if self._length is None:
                self._length = 0 if byte == _QUOTE else None
            elif self._escapes:
                self._escapes = False
            elif byte == _QUOTE:
                self._length = None
            else:
                self._escapes = byte == _BACKSLASH
                self._length += byte & 0xC0 != 0x80  # not in the middle of a character


# Ends that were found after a token: new tokens, and the number of the old witness's tokens that they replace.
Remembered = dict[int, list[tuple[tuple[int, ...], int]]]


class OutputEnd:
    """A witness of one request's output, after each token.

    Most tokens need no search: after a letter of a string, the old witness still ends the output.
    """

    __slots__ = ("_fraction", "_last", "_max_run", "_remembered", "_runs", "_search", "_string", "_tokens")

    def __init__(
        self, search: WitnessSearch, tokens: Sequence[int], remembered: Remembered, *, max_run: int, max_length: int
    ) -> None:
        """Initializes the end of an empty output.

        Args:
            search: finds new witnesses.
            tokens: the witness of the grammar.
            remembered: ends that were found for requests with the same grammar.
            max_run: tokens that may repeat those 1 to `MAX_PERIOD` before them; then the witness's next token follows.
                0: any number.
            max_length: characters of a JSON string after which the witness's next token follows. 0: any number.
        """
        self._search = search
        self._tokens = tuple(tokens)
        self._remembered = remembered
        self._max_run = max_run
        self._last: deque[int] = deque(maxlen=MAX_PERIOD)  # the newest first
        self._runs = [0] * MAX_PERIOD
        self._fraction: int | None = None  # digits after a point at the end of the output; None: there is no point
        self._string = StringLength(max_length) if max_length else None

    def choose(self, matcher: LLMatcher, token: int, left: int, seconds: float) -> int:
        """Returns `token` if the output can end within `left` tokens, itself included; else the witness's next one.

        Args:
            matcher: matcher of the output, which allows `token`; it is not changed.
            token: the model's choice.
            left: number of tokens that the output may still have, an EOS excluded.
            seconds: CPU time that a search may take.
        """
        eos = self._search.facts.eos
        if token in eos:
            return token
        if self._tokens[:1] != (token,):
            stops = self._is_repetition(token) or self._is_long_fraction(matcher, token) or self._is_long_string()
            end = None if stops else self._end_after(matcher, token, left - 1, seconds)
            if end is not None:
                self._tokens = (token, *end)
            elif not self._tokens:
                return eos[0]
        token, *rest = self._tokens
        self._tokens = tuple(rest)
        self._count(token)
        return token

    def _end_after(self, matcher: LLMatcher, token: int, left: int, seconds: float) -> tuple[int, ...] | None:
        """Returns a witness of at most `left` tokens after `token`; None if none is found."""
        known = self._remembered.setdefault(token, [])
        for new, replaced in ((), 1), ((), 0), *known:
            end = (*new, *self._tokens[replaced:])
            if len(end) <= left and self._search.fits(matcher, (token, *end)):
                return end
        after = matcher.deep_copy()
        if seconds <= 0 or not after.consume_token(token):
            return None
        found = self._search.find(after, left, self._tokens, effort=Effort(NEXT_STATES, min(seconds, NEXT_SECONDS)))
        if found is not None:
            same = 0
            while same < min(len(found), len(self._tokens)) and found[-1 - same] == self._tokens[-1 - same]:
                same += 1
            known.insert(0, (found[: len(found) - same], len(self._tokens) - same))
            del known[MAX_REMEMBERED:]
        return found

    def _is_repetition(self, token: int) -> bool:
        """Returns whether `token` would exceed the run. An output that may end here is not cut."""
        runs = zip(self._last, self._runs, strict=False)
        return bool(self._max_run and self._tokens) and any(
            token == before and run >= self._max_run for before, run in runs
        )

    def _is_long_fraction(self, matcher: LLMatcher, token: int) -> bool:
        """Returns whether `token` adds to a long fraction of a number that may end here."""
        if self._fraction is None or self._fraction < MAX_FRACTION or self._search.letter is None:
            return False
        following = self._search.texts[self._tokens[0]] if self._tokens else b""
        is_number = not matcher.validate_tokens([self._search.letter])
        return self._search.texts[token].isdigit() and is_number and not following[:1].isdigit()

    def _is_long_string(self) -> bool:
        return self._string is not None and self._string.is_full

    def _count(self, token: int) -> None:
        if self._string is not None:
            self._string.add(self._search.texts[token])
        _, point, digits = (text := self._search.texts[token]).rpartition(b".")
        if point:
            self._fraction = len(digits) if digits.isdigit() or not digits else None
        elif self._fraction is not None:
            self._fraction = self._fraction + len(text) if text.isdigit() else None
        for back, before in enumerate(self._last):
            self._runs[back] = self._runs[back] + 1 if token == before else 0
        self._last.appendleft(token)

"""Witnesses: short sequences of tokens with which an output may legally end.

A grammar alone does not end an output: a model may write inside a string until `max_tokens`. A witness is a proof that
the output can end from here. As long as it fits what is left of `max_tokens`, the model chooses its own tokens. Else
those of the witness are taken, so the output ends in the format.

The grammar engine has no such search. This one walks through copies of a matcher, and reads their bitmasks.
"""

from __future__ import annotations

import itertools
import time
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

    from runtime.structured_output.gbnf import GrammarTraits
    from runtime.structured_output.grammar_facts import GrammarFacts

FIRST_STATES, FIRST_SECONDS = 6_000, 0.5  # effort for the first witness of a grammar; a state takes 20 to 60 us
NEXT_STATES, NEXT_SECONDS = 1_000, 0.1  # effort for one while decoding, in the engine's thread; most need 30 states
TOKENS_PER_STATE = 32  # validated tokens that take as long as a state
FREE_BYTES = 40  # more first bytes of allowed tokens are text that the grammar hardly restricts
EXIT_SHARE = 0.5  # of the tokens with a first byte; if fewer are allowed, it may lead out of free text
FOLLOWED_BYTES = 6  # of them are followed there; those that the grammar restricts most lead out of the text
MAX_BITMASKS = 256  # whose selected tokens are remembered
MAX_SPECIAL = 8  # special tokens that are followed
_QUOTE, _BACKSLASH, _POINT, _ZERO, _MINUS = b'"\\.0-'
CLOSING = b'}]",'  # first bytes to follow first
MAX_TOKENS = 2048  # of a witness
MAX_REJOINED = 16  # places of a longer end that are tried per state
MAX_DETOUR = 64  # tokens that differ from a longer end, where one is shortened
LOOP_VISITS = (24, 1000)  # visits of states with the same bitmask after which another token is followed
MAX_REMEMBERED, MAX_REMEMBERED_TOKENS = 4, 1024  # remembered ends per token, and tokens with some per grammar
RETRY_TOKENS = 64  # tokens after which a search that was given up is repeated
LAST_TOKENS = 256  # tokens before the end of the output from which the effort of a search no longer counts
MAX_PERIOD = 8  # tokens of a repeated sequence
MAX_DIGITS = 16  # of a number with a fraction, from the first that is not 0 on: with more, 3.99... is read as 4


Ends = tuple[tuple[int, ...], ...]  # tokens of texts that end a free text


class Effort:
    """Limits of a search: the number of states, and CPU time of the thread for states that take long."""

    def __init__(self, states: int, seconds: float) -> None:
        self._states = states
        self._until = time.thread_time() + seconds

    @property
    def is_spent(self) -> bool:
        return self._states < 0 or time.thread_time() >= self._until

    def spend(self, tokens: int = 0) -> bool:
        """Counts a state, or the validation of `tokens`. Returns whether the search may go on."""
        self._states -= 1 + tokens // TOKENS_PER_STATE
        return not self.is_spent


def _has(mask: bytes, token: int) -> bool:
    return bool(mask[token >> 3] >> (token & 7) & 1)


def _place(part: tuple[int, ...], path: tuple[int, ...]) -> int:
    """Returns where `part` ends in `path`; 0 if it does not contain it."""
    places = (i + len(part) for i in range(len(path) - len(part) + 1) if path[i : i + len(part)] == part)
    return next(places, 0)


class WitnessSearch:
    """Searches for witnesses with one tokenizer.

    Attributes:
        facts: constants of the engine.
        texts: bytes of each token, b"" for special tokens.
    """

    def __init__(self, tokenizer: LLTokenizer, facts: GrammarFacts) -> None:
        self.facts = facts
        self._tokenizer = tokenizer
        size = tokenizer.vocab_size
        texts = [b"" if tokenizer.is_special_token(i) else tokenizer.decode_bytes([i]) for i in range(size)]
        self.texts = texts
        self._sizes = np.array([len(text) for text in texts])
        self._first = np.array([text[0] if text else 256 for text in texts])  # 256: special, or without text
        self._counts = np.bincount(self._first, minlength=257)
        self._closing = np.zeros(256, dtype=np.int64)
        self._closing[list(CLOSING)] = range(len(CLOSING), 0, -1)
        self._letters = np.array([text.isalpha() for text in texts])
        self._eos = np.array(facts.eos)
        self._row = np.zeros(facts.mask_len, dtype=np.int32)
        self._candidates: OrderedDict[bytes, list[int]] = OrderedDict()  # by bitmask

    def first(self, matcher: LLMatcher, suffixes: Sequence[str]) -> tuple[int, ...] | None:
        """Returns a short output of a compiled grammar, without an EOS; None if none is found.

        Args:
            matcher: the compiled grammar.
            suffixes: texts that end a free text of the grammar, which no bitmask shows.
        """
        choices = self.encode(suffixes), ()
        return self.find_with_ends(matcher, MAX_TOKENS, (), choices, states=FIRST_STATES, seconds=FIRST_SECONDS)

    def encode(self, suffixes: Sequence[str]) -> Ends:
        return tuple(tuple(self._tokenizer.tokenize_str(suffix)) for suffix in suffixes)

    def find_with_ends(
        self, matcher: LLMatcher, max_tokens: int, known: Sequence[int], choices: Sequence[Ends], *, states: int,
        seconds: float,
    ) -> tuple[int, ...] | None:  # fmt: skip
        """Returns what `find` finds with the first of several `ends`, each with an effort of its own."""
        efforts = ((ends, Effort(states, seconds)) for ends in dict.fromkeys(choices))
        found = (self.find(matcher, max_tokens, known, effort=effort, ends=ends) for ends, effort in efforts)
        return next((path for path in found if path is not None), None)

    def find(
        self, matcher: LLMatcher, max_tokens: int, known: Sequence[int] = (), *, effort: Effort,
        ends: Ends = (),
    ) -> tuple[int, ...] | None:  # fmt: skip
        """Returns an end without an EOS, shortened as far as the effort allows; None if none of `max_tokens` is found.

        Args:
            matcher: state of the output; it is not changed.
            max_tokens: maximum length.
            known: a witness of an earlier state, which the end may rejoin.
            effort: what the search may take.
            ends: tokens that are followed at the first state that allows them.
        """
        path = None
        for loop in LOOP_VISITS:
            longest = MAX_TOKENS if path is None else len(path) - 1
            other = self._roll_out(matcher, (), known, longest, effort, ends, loop)
            path = path if other is None else other
        # Before such an end each token is text, and none leads to a shorter end.
        start = max((_place(end, path or ()) for end in ends), default=0)
        before = None
        while path is not None and path != before and not effort.is_spent:
            before, path = path, self._shorten(matcher, path, effort, start)
        return path if path is not None and len(path) <= max_tokens else None

    def _roll_out(
        self, matcher: LLMatcher, begin: tuple[int, ...], known: Sequence[int], longest: int, effort: Effort,
        ends: Ends = (), loop: int = LOOP_VISITS[0],
    ) -> tuple[int, ...] | None:  # fmt: skip
        """Follows `begin`, and then one token per state, to an end or to a state from which a part of `known` ends."""
        state = matcher.deep_copy()
        if not state.consume_tokens(list(begin)):
            return None
        path = list(begin)
        visits: dict[int, int] = {}  # by the hash of a bitmask, which has 20 KB for a large vocabulary
        last = len(path) + MAX_DETOUR if begin else MAX_TOKENS
        while not state.is_accepting():
            mask = self._mask(state)
            rejoined = (i for i in range(len(known) - 1, -1, -1) if _has(mask, known[i]))
            for i in itertools.islice(rejoined, MAX_REJOINED):
                if len(path) + len(known) - i > longest or not effort.spend(len(known) - i):
                    break
                if self.fits(state, known[i:]):
                    return (*path, *known[i:])
            if end := next((end for end in ends if state.validate_tokens(list(end)) == len(end)), None):
                state.consume_tokens(list(end))
                path += end
                ends = tuple(each for each in ends if each != end)
                continue
            following = self._follow(mask)
            if not following or len(path) >= min(longest, last) or not effort.spend():
                return None
            visits[hash(mask)] = number = visits.get(hash(mask), 0) + 1
            token = following[number // loop % len(following)]
            if not state.consume_token(token):
                return None
            path.append(token)
        return tuple(path) if len(path) <= longest else None

    def _shorten(self, matcher: LLMatcher, path: tuple[int, ...], effort: Effort, start: int) -> tuple[int, ...]:
        """Returns an end that differs from `path`, from token `start` on, where another token makes it shorter."""
        state = matcher.deep_copy()
        state.consume_tokens(list(path[:start]))
        i = start
        while i < len(path):
            for token in self._follow(self._mask(state)):
                if token == path[i]:
                    continue
                if effort.is_spent:
                    return path
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
        shares = counts[groups] / self._counts[groups]
        if len(groups) > FREE_BYTES:  # free text: a quote, or what the grammar restricts most, leads out of it
            shares[groups == _QUOTE] = 0
            shares[groups == _BACKSLASH] = 1
            groups, shares = groups[order := np.argsort(shares, kind="stable")][:FOLLOWED_BYTES], shares[order]
            letters = allowed[self._letters[allowed]]
            if len(letters) and shares[0] >= EXIT_SHARE:
                yield self._longest(letters)  # a text may have a minimum length
        else:
            order = self._closing[groups]
            if counts[_ZERO]:  # of a number: a minus makes it longer, and in a fraction zeros alone may be too little
                order[groups == (_MINUS if counts[_MINUS] else _ZERO)] = -1
            groups = groups[np.lexsort((shares, -order))]
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


class JsonText:
    """Follows the JSON values at the end of an output: whether it is in a string, and how long string or number are.

    Attributes:
        string: characters of the open string; None outside of strings.
        digits: digits of the number at the end, from the first that is not 0 on.
        has_point: whether that number has a point.
    """

    __slots__ = ("_escapes", "digits", "has_point", "string")

    def __init__(self) -> None:
        self.string: int | None = None
        self.digits = 0
        self.has_point = False
        self._escapes = False

    def add(self, text: bytes) -> None:
        """Adds the bytes of a token, which may end inside a character or an escape; b"" for a special token."""
        if not text:
            self.string = None
            self._end_number()
        for byte in text:
            if self.string is None:
                self.string = 0 if byte == _QUOTE else None
                if byte == _POINT:
                    self.has_point = True
                elif not _ZERO <= byte <= _ZERO + 9:
                    self._end_number()
                elif self.digits or byte != _ZERO:
                    self.digits += 1
            elif self._escapes:
                self._escapes = False
            elif byte == _QUOTE:
                self.string = None
            else:
                self._escapes = byte == _BACKSLASH
                self.string += byte & 0xC0 != 0x80  # not in the middle of a character

    def _end_number(self) -> None:
        self.digits = 0
        self.has_point = False


# Ends that were found after a token: new tokens, and the number of the old witness's tokens that they replace.
Remembered = dict[int, list[tuple[tuple[int, ...], int]]]


class _Excess(NamedTuple):
    """A limit of values, the first bytes of tokens that end such a value, and whether the output may end with it."""

    reason: str
    ends: tuple[bytes, ...]
    may_end_output: bool = False


_LONG_RUN = _Excess("structured_max_run", (b'"', b"]", b"}", b""))  # b"" is a special token, which ends a thought
_LONG_STRING = _Excess("structured_max_length", (b'"',))
_LONG_FRACTION = _Excess("a number has a long fraction", (b",", b"]", b"}"), may_end_output=True)


class OutputEnd:
    """Ends one request's output in its format, within its maximum number of tokens.

    While there is much space, nothing is searched. Then it holds a witness after each token. Most tokens need no
    search: after a letter of a string, the old witness still ends the output. If a search takes too long, the output
    goes on without a witness while there is much space, and the search is repeated later.

    Attributes:
        reason: why tokens of a witness replaced the model's, "" if none did.
        first: the witness of the grammar.
    """

    __slots__ = (
        "_ends_of_text", "_json", "_last", "_max_length", "_max_run", "_remembered", "_reserve", "_runs", "_search",
        "_tokens", "first", "reason",
    )  # fmt: skip

    def __init__(
        self, search: WitnessSearch, first: Sequence[int], traits: GrammarTraits, remembered: Remembered, *,
        max_run: int, max_length: int,
    ) -> None:  # fmt: skip
        """Initializes the end of an empty output.

        Args:
            search: finds new witnesses.
            first: the witness of the grammar.
            traits: of the grammar.
            remembered: ends that were found for requests with the same grammar.
            max_run: tokens of JSON that may repeat those 1 to `MAX_PERIOD` before them; 0: any number.
            max_length: characters of a JSON string; 0: any number.
        """
        self._search = search
        self.first = tuple(first)
        self._tokens: tuple[int, ...] | None = self.first  # None: unknown
        self._remembered = remembered
        self._ends_of_text = search.encode(traits.suffixes)
        self._reserve = None if traits.reserve is None else traits.reserve + len(first)
        is_json = traits.longest_string is not None
        self._json = JsonText() if is_json else None
        self._max_run = max_run if is_json else 0
        self._max_length = max_length and max(max_length, traits.longest_string or 0)
        self._last: deque[int] = deque(maxlen=MAX_PERIOD)  # the newest first
        self._runs = [0] * MAX_PERIOD
        self.reason = ""

    def choose(self, matcher: LLMatcher, token: int, left: int, seconds: float) -> int:
        """Returns `token` if the output can end within `left` tokens, itself included; else the witness's next one.

        Args:
            matcher: matcher of the output, which allows `token`; it is not changed.
            token: the model's choice.
            left: number of tokens that the output may still have, an EOS excluded.
            seconds: CPU time that a search may take.
        """
        if token in self._search.facts.eos:
            return token
        chosen = self._choose(matcher, token, left, seconds)
        if chosen not in self._search.facts.eos:
            self._count(chosen)
        return chosen

    def _choose(self, matcher: LLMatcher, token: int, left: int, seconds: float) -> int:
        excess = self._excess(token)
        if self._reserve is not None and left > self._reserve and excess is None:
            self._tokens = None
            return token
        if self._tokens is None and (excess is not None or left <= LAST_TOKENS or left % RETRY_TOKENS == 0):
            seconds = NEXT_SECONDS if left <= LAST_TOKENS else min(seconds, NEXT_SECONDS)
            choices = (), self._ends_of_text
            self._tokens = self._search.find_with_ends(
                matcher, left, self.first, choices, states=NEXT_STATES, seconds=seconds
            )
        if self._tokens is None:
            return token
        if self._tokens[:1] == (token,):
            self._tokens = self._tokens[1:]
            return token
        if excess is not None and self._ends(excess):
            self.reason = self.reason or excess.reason
            return self._take()
        end, is_found = self._end_after(matcher, token, left - 1, seconds)
        if end is not None or (not is_found and self._may_go_on_without(left)):
            self._tokens = end
            return token
        self.reason = self.reason or "max_tokens"
        return self._take()

    def _may_go_on_without(self, left: int) -> bool:
        """Returns whether there is space to find a witness later, where a search has been given up."""
        assert self._tokens is not None
        return left > max(LAST_TOKENS, len(self._tokens) + RETRY_TOKENS)

    def _take(self) -> int:
        """Returns the witness's next token, an EOS at its end."""
        if not self._tokens:
            return self._search.facts.eos[0]
        token, self._tokens = self._tokens[0], self._tokens[1:]
        return token

    def _end_after(
        self, matcher: LLMatcher, token: int, left: int, seconds: float
    ) -> tuple[tuple[int, ...] | None, bool]:
        """Returns a witness of at most `left` tokens after `token`, if any, and False if the search was given up."""
        assert self._tokens is not None
        if seconds <= 0 and self._may_go_on_without(left):
            return None, False
        known = self._remembered.get(token, [])
        for new, replaced in ((), 1), ((), 0), *known:
            end = (*new, *self._tokens[replaced:])
            if len(end) <= left and self._search.fits(matcher, (token, *end)):
                return end, True
        after = matcher.deep_copy()
        effort = Effort(NEXT_STATES, min(seconds, NEXT_SECONDS))
        if effort.is_spent or not after.consume_token(token):
            return None, not effort.is_spent
        found = self._search.find(after, left, self._tokens, effort=effort)
        if found is not None:
            same = 0
            while same < min(len(found), len(self._tokens)) and found[-1 - same] == self._tokens[-1 - same]:
                same += 1
            new_end = found[: len(found) - same], len(self._tokens) - same
            if len(self._remembered) >= MAX_REMEMBERED_TOKENS:
                self._remembered.clear()
            self._remembered[token] = [new_end, *known][:MAX_REMEMBERED]
        return found, not effort.is_spent

    def _excess(self, token: int) -> _Excess | None:
        """Returns the limit of values that `token` exceeds, if any."""
        if self._max_run:
            runs = zip(self._last, self._runs, strict=False)  # fewer at the begin
            if any(token == before and run >= self._max_run for before, run in runs):
                return _LONG_RUN
        if self._json is None:
            return None
        if self._max_length and self._json.string is not None and self._json.string >= self._max_length:
            return _LONG_STRING
        is_long = self._json.has_point and self._json.digits >= MAX_DIGITS
        return _LONG_FRACTION if is_long and self._search.texts[token][:1].isdigit() else None

    def _ends(self, excess: _Excess) -> bool:
        """Returns whether the witness goes on with the end of the value that is too long."""
        assert self._tokens is not None
        return self._search.texts[self._tokens[0]][:1] in excess.ends if self._tokens else excess.may_end_output

    def _count(self, token: int) -> None:
        if self._json is not None:
            self._json.add(self._search.texts[token])
        for back, before in enumerate(self._last):
            self._runs[back] = self._runs[back] + 1 if token == before else 0
        self._last.appendleft(token)

"""Constrains the names of tool calls, while all other text of an output is unmasked freely."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runtime.scheduling.step_plan import MASKED, BlockResults, SampledBlocks
from runtime.structured_output.grammar_matcher import GrammarMatcher

if TYPE_CHECKING:  # machines for benchmarks do not have msgspec
    from llguidance import LLMatcher, LLTokenizer

    from runtime.request.engine_messages import ToolNames


class ToolNameMatcher:
    """Reads the output of one request, and applies a grammar from each start marker of a call to the end of the name.

    A step may unmask a marker together with tokens after it. Those that the grammar allows stay, up to the first mask;
    the others are masked again before the block is updated, and constrained decoding fills them in the next steps.
    Requests have one open block at a time, so that no later block depends on these tokens.
    """

    def __init__(
        self, names: ToolNames, start: GrammarMatcher, tokens: LLTokenizer, *, first_position: int, mask_id: int
    ) -> None:  # fmt: skip
        """
        Args:
            names: Names and markers.
            start: Matcher at the start of the grammar.
            tokens: Ordinary tokens.
            first_position: Position of the first token of the output.
            mask_id: Token of MASKED positions.
        """
        self._constraint = start  # the last one
        self._begun = start.matcher  # at the start of the grammar, which is in the start marker if that is text
        self._marked = start.matcher.deep_copy()  # after the start marker
        if names.opens not in names.special_tokens.values():
            self._marked.consume_tokens(tokens.greedy_tokenize(names.opens))
        self._decode = tokens.decode_bytes
        self._special = {token: text.encode() for token, text in names.special_tokens.items()}
        self._call = names.opens.encode()
        self._reasoning = None if names.reasoning is None else tuple(mark.encode() for mark in names.reasoning)
        self._in_reasoning = names.in_reasoning
        self._may_reason = self._reasoning is not None and not names.in_reasoning  # the output has no text yet
        self._longest = max(len(mark) for mark in (self._call, *(self._reasoning or ())))
        self._text = b""  # the end of the text that may be the beginning of a marker
        self._matcher: LLMatcher | None = None  # has accepted the text since the marker, while a name is incomplete
        self._mask_id = mask_id
        self._position = first_position  # tokens before it were read

    def may_mask(self, start: int, size: int, results: SampledBlocks, i: int) -> bool:
        """Returns whether `update` may mask positions; it does not if no new token completes a start marker."""
        end = min(results.first_masked[i], results.first_eos[i], size)
        added = results.tokens[i, max(self._position - start, 0) : end].tolist()
        return self._matcher is not None or self._call in b"".join((self._text, *map(self._text_of, added)))

    def update(
        self, start: int, size: int, results: BlockResults, i: int, used: GrammarMatcher | None
    ) -> GrammarMatcher | None:
        """Reads the new tokens of the block in result `i`, and masks those that cannot be part of a name.

        Args:
            start: First position of the block.
            size: Positions of the block.
            results: Results of a step.
            i: Index of the block in `results`.
            used: The matcher of this step; None if its text was free.

        Returns:
            The matcher of the next step, None if its text is free.
        """
        if used is not None:
            self._constraint = used
            if used.error:
                self._matcher = None  # the parser does not return calls of other names either
        offset = max(self._position - start, 0)
        end = min(results.first_masked[i], results.first_eos[i], size)
        while offset < end and self._accepts(int(results.tokens[i, offset])):
            offset += 1
        self._position = max(self._position, start + offset)
        if self._matcher is None:
            return None
        if offset < size:
            self._mask(results, i, offset, size)
        return self._constraint.partial_at(self._matcher.deep_copy())

    def _accepts(self, token: int) -> bool:
        if self._matcher is None:
            self._find_marker(token)
            return True
        if not self._matcher.try_consume_tokens([token]):
            return False
        if self._matcher.is_accepting():  # the name is complete
            self._matcher = None
        return True

    def _find_marker(self, token: int) -> None:
        self._text += self._text_of(token)
        if self._may_reason:
            assert self._reasoning is not None
            begun = self._text.lstrip()
            self._in_reasoning = begun.startswith(self._reasoning[0])
            self._may_reason = not self._in_reasoning and self._reasoning[0].startswith(begun)
        if self._in_reasoning:
            assert self._reasoning is not None
            at = self._text.find(self._reasoning[1])
            if at >= 0:
                self._text = self._text[at + len(self._reasoning[1]) :]
                self._in_reasoning = False
        at = -1 if self._in_reasoning else self._text.find(self._call)
        if at >= 0:
            self._text = self._text[at + len(self._call) :]
            self._begin_name(token)
        if not self._may_reason:
            self._text = self._text[-self._longest :]

    def _text_of(self, token: int) -> bytes:
        special = self._special.get(token)
        return self._decode([token]) if special is None else special

    def _begin_name(self, token: int) -> None:
        """Starts the grammar after a marker, whose last token may also have the text after it."""
        matcher = (self._begun if self._text else self._marked).deep_copy()
        if self._text and not matcher.try_consume_tokens([token]):
            return
        if not matcher.is_accepting():  # otherwise no later token is constrained
            self._matcher, self._text = matcher, b""

    def _mask(self, results: BlockResults, i: int, offset: int, size: int) -> None:
        """Masks the positions of a block of `size` from `offset` on, before which none is MASKED."""
        results.tokens[i, offset:size] = self._mask_id
        results.state[i, offset:size] = MASKED
        results.masks[i] = size - offset
        results.first_masked[i] = offset
        results.finished[i] = False
        if results.first_eos[i] >= offset:
            results.first_eos[i] = results.tokens.shape[1]

"""Fill-in-the-middle: completion of a text at a cursor, as editors request it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from runtime.request.sampling_params import MAX_COUNT
from runtime.request.validation import integer, refuse
from runtime.server.serving.context import ServerContext
from runtime.server.serving.generation import GenerationRequest, check_unset
from runtime.server.serving.preprocessor import MAX_PROMPT_TOKENS, context_length_error
from runtime.server.serving.specs import NO_LIMIT, Generation

DEFAULT_MAX_TOKENS = 64
SUFFIX_SHARE = 4  # a long text after the cursor gets a quarter of the room, the text before it the rest
Ids = list[int]


@dataclass(frozen=True)
class Middle:
    """A cursor in a text.

    Attributes:
        before: text before the cursor.
        after: text after it.
        snippets: other texts, for context, the most important one last.
        max_tokens: maximum length of the completion; None or -1: `DEFAULT_MAX_TOKENS`.
        shortens: texts that are too long are cut, the farthest from the cursor first. False: they are an error.
        param: field of the request that error messages about the texts name.
        length_param: that of `max_tokens`.
    """

    before: str
    after: str
    snippets: Sequence[str] = ()
    max_tokens: int | None = None
    shortens: bool = False
    param: str = "prompt"
    length_param: str = "max_tokens"


async def encode_middle(
    context: ServerContext, generation: Generation, body: GenerationRequest, middle: Middle
) -> bool:
    """Sets prompt, `max_tokens` and pinned tokens of `generation`. Returns whether texts were cut.

    A model that sees the text after the cursor fills a hole of exactly `max_tokens` tokens. Another one reads that text
    before the one that it continues, and may end earlier. What stays the same while the user types comes first, so that
    the prefix cache has it.

    Raises:
        RequestError: A text or a field is invalid, or the texts are too long.
    """
    request, info = generation.request, generation.loaded[0]
    requested = DEFAULT_MAX_TOKENS if middle.max_tokens in (None, NO_LIMIT) else middle.max_tokens
    length = integer(middle.length_param, requested, 1, MAX_COUNT)
    length = context.limit_tokens(request, length, info, middle.length_param)
    texts = ["\n", *map(_lines, middle.snippets), middle.before, middle.after]
    pieces = await context.preprocessor.encode_pieces(request, texts, middle.param, MAX_PROMPT_TOKENS)
    newline, *snippets, before, after = pieces
    bos = info.with_bos([])
    size = sum(map(len, (*snippets, before, after)))
    free_tokens = info.max_model_len - len(bos) - len(newline)
    cut = middle.shortens and size > free_tokens - length
    if cut:
        snippets, before, after = _shorten(snippets, before, after, max(free_tokens - length, free_tokens // 2))
    elif size >= free_tokens:
        raise context_length_error(middle.param, info, "more than")
    fills = bool(after) and info.sees_suffix
    prompt = [*bos, *chain.from_iterable(snippets)]
    if after and not fills:
        prompt += [*after, *(() if middle.after.endswith("\n") and not cut else newline)]
    prompt += before
    if not prompt:
        raise refuse(middle.param, "is empty; this model needs a text before the cursor")
    if fills:
        hole = min(length, info.max_model_len - len(prompt) - len(after))
        _check_hole(body, hole)
        generation.pin_suffix(hole, after)
    else:
        generation.max_tokens = length
    generation.prompts = [prompt]
    return cut


def _lines(text: str) -> str:
    """Returns the text with a newline at its end."""
    return text if text.endswith("\n") else text + "\n"


def _shorten(snippets: list[Ids], before: Ids, after: Ids, room: int) -> tuple[list[Ids], Ids, Ids]:
    """Cuts what is farthest from the cursor, and leaves out the first snippets, until the rest has `room` tokens."""
    after = after[: max(room // SUFFIX_SHARE, room - len(before))]
    before = before[max(len(before) + len(after) - room, 0) :]
    room -= len(before) + len(after)
    while snippets and sum(map(len, snippets)) > room:
        snippets = snippets[1:]
    return snippets, before, after


def _check_hole(body: GenerationRequest, hole: int) -> None:
    """Raises RequestError for limits that a hole cannot have. `min_tokens` needs no check by the engine: it is full."""
    check_unset(
        body, ["max_nfe", "max_repetition_run"], "cannot be combined with a text after the cursor; leave it out"
    )
    if body.min_tokens is not None:
        integer("min_tokens", body.min_tokens, 0, hole)
        body.min_tokens = None

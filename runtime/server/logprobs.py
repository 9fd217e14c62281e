"""Log-probabilities as OpenAI's chat and completions tell them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from runtime.parts import part_marks
from runtime.request.choice import Choice, TokenLogprob
from runtime.text.offsets import Offsets, Place
from runtime.text.pieces import Pieces

Told = tuple[TokenLogprob, Place]


def word(data: bytes) -> str:
    """A token's bytes as text; where they are no whole characters, as ``bytes:\\xe2\\x82``."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


class Revealed:
    """Which of an answer's tokens were not told yet though all of their text was."""

    def __init__(self, choice: Choice, pieces: Pieces) -> None:
        self._choice = choice
        self._pieces = pieces
        self._offsets = Offsets(pieces.spoken(part_marks()))
        self._places: list[Place] = []
        self._sent = 0

    def fresh(self) -> list[Told]:
        """Those, in order. At the end all that the answer has."""
        told, places = self._choice.told or [], self._places
        places += self._offsets.push(entry.id for entry in told[len(places) :])
        length = len(self._choice.text or "")
        first = last = self._sent
        while last < len(told) and (self._choice.finish_reason is not None or places[last].end <= length):
            last += 1
        self._sent = last
        return list(zip(told[first:last], places[first:last], strict=True))

    def told(self) -> dict[str, Any] | None:
        """`fresh` as chat tells it; None where nobody asks."""
        return None if self._choice.spec.logprobs is None else of_chat(self.fresh(), self._pieces)


def revealed_of(choices: Iterable[Choice], pieces: Pieces) -> list[Revealed]:
    """One for each."""
    return [Revealed(choice, pieces) for choice in choices]


def of_own(told: Iterable[TokenLogprob], pieces: Pieces) -> list[dict[str, Any]]:
    """`logprobs` of the project's own routes: an entry for each of `token_ids`."""

    def one(token: int, logprob: float | None) -> dict[str, Any]:
        return {"id": token, "token": word(pieces(token)), "logprob": logprob}

    return _entries(told, one)


def ending(choice: Choice) -> list[Told]:
    """The token that ended the answer, if it is known: no part of it, and told by completions alone."""
    if choice.ending is None or not choice.eos:
        return []
    length = len(choice.text or "")
    return [(choice.ending, Place(length, length))]


def of_chat(told: Iterable[Told], pieces: Pieces) -> dict[str, Any]:
    """Chat's `logprobs`."""

    def one(token: int, logprob: float | None) -> dict[str, Any]:
        data = pieces(token)
        return {"token": word(data), "logprob": logprob, "bytes": list(data)}

    return {"content": _entries((entry for entry, _ in told), one), "refusal": None}


def _entries(told: Iterable[TokenLogprob], one: Callable[[int, float | None], dict[str, Any]]) -> list[dict[str, Any]]:
    """Each token as `one` writes it, and with it the likeliest of its place."""
    return [
        {**one(entry.id, entry.logprob), "top_logprobs": [one(token, value) for token, value in entry.top]}
        for entry in told
    ]


def of_completion(told: Iterable[Told], pieces: Pieces, base: int = 0) -> dict[str, Any]:
    """Completions' `logprobs`; `base`: characters before the text of these. What is told of a position always holds the
    token that stands there."""
    made: dict[str, Any] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    for entry, place in told:
        top: dict[str, float] | None = None
        if entry.logprob is not None:
            top = {}
            for token, value in (*entry.top, (entry.id, entry.logprob)):
                top.setdefault(word(pieces(token)), value)
        made["tokens"].append(word(pieces(entry.id)))
        made["token_logprobs"].append(entry.logprob)
        made["top_logprobs"].append(top)
        made["text_offset"].append(base + place.start)
    return made

"""What an answer grows by: a piece of one of its parts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Text:
    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """A call begins. `index`: which of the answer's calls, from 0. `id`: the server's own, which its result names."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class Arguments:
    """A piece of a call's arguments; all of a call's pieces together are the text of one JSON object."""

    index: int
    text: str


Delta = Text | Reasoning | CallStart | Arguments

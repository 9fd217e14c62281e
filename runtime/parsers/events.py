"""Deltas of parsed model output."""

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
    """Start of a call.

    Attributes:
        index: Number of the call, from 0.
        id: Id that the server assigned, which the tool's result names.
        name: Name of the tool.
    """

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class Arguments:
    """Part of a call's arguments. The joined parts are the text of one JSON object."""

    index: int
    text: str


Delta = Text | Reasoning | CallStart | Arguments

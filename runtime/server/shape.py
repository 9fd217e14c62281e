"""How much a JSON body holds, counted before anything is made of it.

A parser makes an object of every pair of braces, and a validator an error of every wrong one: two bytes of a body cost
it kilobytes and microseconds. So what a body may hold is limited, and counted on its bytes alone, in a few passes of C.
"""

from __future__ import annotations

from collections.abc import Iterator

from runtime.errors import RequestError

MAX_VALUES = 2**17  # in lists and objects together; of a prompt given as ids these are the ids
MAX_STRINGS = 2**14  # keys included
MAX_FIELDS = 2**13  # of objects
MAX_CONTAINERS = 2**13  # objects and lists
MAX_DIGITS = 64  # in a row: what a number costs grows with the square of its length
PIECE = 2**18  # bytes that are counted at once

_DIGITS = bytes.maketrans(b"123456789", b"000000000")


def check_shape(data: bytes) -> None:
    """Raises RequestError 400 for a body that holds more than the limits above."""
    for _ in check_shape_in_steps(data):
        pass


def check_shape_in_steps(data: bytes) -> Iterator[None]:
    """`check_shape` in steps of a few milliseconds.

    Of a body that is no JSON, what stands before its first fault is counted right, and no parser goes further.
    """
    at = quotes = containers = fields = commas = 0
    while at < len(data):
        piece = data[at : at + PIECE]
        if (len(piece) - len(piece.rstrip(b"\\"))) % 2:  # an escape is not cut
            piece = data[at : at + PIECE + 1]
        at += len(piece)
        if b"\\" in piece:  # outside of strings a backslash is no JSON; within, pairs go first: \\" ends a string
            piece = piece.replace(b"\\\\", b"").replace(b'\\"', b"")
        here = piece.count(b'"')
        if here or quotes % 2:
            piece = b'"'.join(piece.split(b'"')[quotes % 2 :: 2])  # what stands outside of strings
        quotes += here
        containers += piece.count(b"{") + piece.count(b"[")
        fields += piece.count(b":")
        commas += piece.count(b",")
        if quotes > 2 * MAX_STRINGS:
            raise _too_many("strings (keys included)", MAX_STRINGS)
        if containers > MAX_CONTAINERS:
            raise _too_many("objects and lists", MAX_CONTAINERS)
        if fields > MAX_FIELDS:
            raise _too_many("fields of objects", MAX_FIELDS)
        if commas >= MAX_VALUES:
            raise _too_many("values", MAX_VALUES)
        if b"0" * (MAX_DIGITS + 1) in piece.translate(_DIGITS):
            raise RequestError(
                f"the body holds a number of more than {MAX_DIGITS} digits; send it shorter", code="body_too_complex"
            )
        yield


def _too_many(what: str, limit: int) -> RequestError:
    return RequestError(f"the body holds more than {limit} {what}; send fewer", code="body_too_complex")

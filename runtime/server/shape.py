"""How much a JSON body holds, counted before anything is made of it.

A parser makes an object of every pair of braces, and a validator an error of every wrong one: two bytes of a body cost
it kilobytes and microseconds. So what a body may hold is limited, and counted on its bytes alone, in a few passes of C.
"""

from __future__ import annotations

from runtime.errors import RequestError

MAX_VALUES = 2**17  # in lists and objects together; of a prompt given as ids these are the ids
MAX_STRINGS = 2**14  # keys included
MAX_CONTAINERS = 2**13  # objects and lists


def check_shape(data: bytes) -> None:
    """Raises RequestError 400 for a body that holds more than the limits above.

    Of a body that is no JSON, what stands before its first fault is counted right, and no parser goes further.
    """
    if b"\\" in data:  # outside of strings a backslash is no JSON; within, pairs go first: \\" ends a string
        data = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    quotes = data.count(b'"')
    if quotes > 2 * MAX_STRINGS:
        raise _too_many("strings (keys included)", MAX_STRINGS)
    if quotes:
        data = b"".join(data.split(b'"')[::2])  # what stands outside of strings
    if data.count(b"{") + data.count(b"[") > MAX_CONTAINERS:
        raise _too_many("objects and lists", MAX_CONTAINERS)
    if data.count(b",") >= MAX_VALUES:
        raise _too_many("values", MAX_VALUES)


def _too_many(what: str, most: int) -> RequestError:
    return RequestError(f"the body holds more than {most} {what}; send fewer", code="body_too_complex")

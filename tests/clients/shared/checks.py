"""Shared code of the scripts of Python clients. It runs in their environments, so it needs the standard library only.

A check is a function with assertions on known answers of the demo model. The outcome of each check is a line of JSON
in the file that the suite names, because clients may write anything to the standard streams.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import time
import traceback
from collections.abc import Callable
from typing import Any

SERVER = os.environ["UNMASK_CLIENT_SERVER"]  # without /v1
URL = f"{SERVER}/v1"
KEY = os.environ["UNMASK_CLIENT_KEY"]
MODEL = "unmask-demo"

SUM, SUM_ANSWER = "Solve: 12 + 30.", "12 + 30 = 42."
MULTIPLICATION, MULTIPLICATION_ANSWER = "Solve: 7 * 8.", "7 x 8 = 56."
TALE = "Tell a story about Anna, a fox and a river."  # the longest kind of answer: several blocks
RECORD = "Anna, 34, lives in Rome. Write this as JSON."
PERSON = {"name": "Anna", "age": 34, "city": "Rome"}
COMPUTE, COMPUTED = "What is 812 + 77?", "889"  # for which the demo calls a calculator if it is offered one
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}, "city": {"type": "string"}},
    "required": ["name", "age", "city"],
    "additionalProperties": False,
}

called: list[str] = []  # the expressions that the calculator was called with
_found: list[tuple[str, Callable[[], Any]]] = []


def user_message(text: str) -> Any:
    """Returns the messages of a chat completion with one user message."""
    return [{"role": "user", "content": text}]


def calculated(expression: str) -> str:
    """Returns the result of the calculator that clients offer. Raises ValueError for anything but a sum of two."""
    left, right = expression.split("+")
    return str(int(left) + int(right))


def calculator(expression: str) -> str:
    """Calculate the value of an arithmetic expression."""
    called.append(expression)
    return calculated(expression)


def check(kind: str) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Registers a function, sync or async, that `main` calls. `kind` is one of the client's `covers`."""

    def add(function: Callable[[], Any]) -> Callable[[], Any]:
        _found.append((kind, function))
        return function

    return add


def main() -> None:
    """Calls every check, also after failed ones, and reports its outcome."""
    with open(os.environ["UNMASK_CLIENT_REPORT"], "a", encoding="utf-8") as report:
        for kind, function in _found:
            began = time.monotonic()
            error = None
            try:
                result = function()
                if inspect.isawaitable(result):
                    asyncio.run(_awaited(result))
            except BaseException:
                error = traceback.format_exc()
            row = {"kind": kind, "name": function.__name__, "error": error, "seconds": time.monotonic() - began}
            report.write(json.dumps(row) + "\n")
            report.flush()


async def _awaited(result: Any) -> Any:
    return await result


def same(found: object, expected: object) -> None:
    assert found == expected, f"{found!r} instead of {expected!r}"

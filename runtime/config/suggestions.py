"""Suggestions for misspelled names, and a command-line parser that makes them."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Iterable
from typing import NoReturn

_UNKNOWN = "unrecognized arguments: "


def did_you_mean(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Returns the most similar of the known names, as text that follows a message; "" if none is similar."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=cutoff)
    return f"; did you mean {close[0]}?" if close else ""


def unknown_flags(message: str, known: Iterable[str]) -> str | None:
    """Returns argparse's message on unknown arguments with a suggestion; None for another message."""
    if not message.startswith(_UNKNOWN):
        return None
    arguments = message.removeprefix(_UNKNOWN) or "''"  # an empty argument, such as that of an empty variable
    return f"no such flag: {arguments}{did_you_mean(arguments.partition(' ')[0].partition('=')[0], known)}"


class SuggestingParser(argparse.ArgumentParser):
    """A parser whose message on an unknown flag names the most similar one."""

    def error(self, message: str) -> NoReturn:
        flags = [name for name in self._option_string_actions if name.startswith("--")]
        super().error(unknown_flags(message, flags) or message)

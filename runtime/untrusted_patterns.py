"""Names of modules that match the regular expressions of a checkpoint or an adapter."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from runtime.child_process import module_command
from runtime.errors import ConfigError
from runtime.match_patterns import CPU_SECONDS

COMMAND = module_command("runtime.match_patterns")
WALL_SECONDS = 10 * CPU_SECONDS  # only a process that gets no CPU time reaches it
SHOWN = 200  # characters of a pattern in an error


class PatternMatch(NamedTuple):
    """Attributes: index of the pattern; end of what it matched."""

    pattern: int
    end: int


def first_matches(
    patterns: Sequence[str], modules: Collection[str], field: str, *, form: str = "{}", full: bool = False
) -> dict[str, PatternMatch]:
    """Returns the first pattern that matches the beginning of each name, as ``re.match``, or all of it with `full`.

    The author of a checkpoint may not be the server's owner, and a pattern may take exponential time. Therefore a
    process of its own matches them, with a limit of its CPU time.

    Args:
        patterns: Regular expressions.
        modules: Names. Those that no pattern matches are not in the result.
        field: File and field that have the patterns, for the error, such as "config.json: ignore".
        form: Each pattern stands in it, in place of {}.

    Raises:
        ConfigError: A pattern is no regular expression of Python, or they take too much time.
    """
    if not patterns or not modules:
        return {}
    names = tuple(modules)
    found = _match(tuple(patterns), form, "fullmatch" if full else "match", names, field)
    return {name: PatternMatch(*match) for name, match in zip(names, found, strict=True) if match is not None}


@lru_cache(maxsize=4)  # plans and loaders ask for the same names
def _match(
    patterns: tuple[str, ...], form: str, method: str, names: tuple[str, ...], field: str
) -> list[tuple[int, int] | None]:
    request = json.dumps((patterns, form, method, names))  # ASCII, whatever the names have
    try:
        done = subprocess.run(COMMAND, input=request, capture_output=True, text=True, timeout=WALL_SECONDS, check=True)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
        raise ConfigError(
            f"{field}: the regular expressions could not be matched in {CPU_SECONDS} seconds of CPU time; write them "
            "without repetitions inside of repetitions, or name the modules"
        ) from None
    result: Any = json.loads(done.stdout)
    if isinstance(result, dict):
        pattern = patterns[result["pattern"]][:SHOWN]
        raise ConfigError(f"{field} has {pattern!r}, which is no valid regular expression here: {result['error']}")
    matches: list[tuple[int, int] | None] = result
    return matches

"""Names of modules that match the regular expressions of a checkpoint."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Collection, Sequence
from functools import lru_cache

from runtime.child_process import module_command
from runtime.errors import ConfigError
from runtime.quantization.checkpoint.scheme import FIELD, refuse
from runtime.quantization.match_patterns import CPU_SECONDS

COMMAND = module_command("runtime.quantization.match_patterns")
WALL_SECONDS = 10 * CPU_SECONDS  # only a process that gets no CPU time reaches it


def first_matches(patterns: Sequence[str], modules: Collection[str], field: str) -> dict[str, int]:
    """Returns the index of the first pattern that matches the beginning of each name, as ``re.match``.

    The author of a checkpoint may not be the server's owner, and a pattern may take exponential time. Therefore a
    process of its own matches them, with a limit of its CPU time.

    Args:
        patterns: Regular expressions.
        modules: Names. Those that no pattern matches are not in the result.
        field: Field of config.json that has the patterns, for the error.

    Raises:
        ConfigError: A pattern is no regular expression of Python, or they take too much time.
    """
    if not patterns or not modules:
        return {}
    names = tuple(modules)
    found = _match(tuple(patterns), names, field)
    return {name: number for name, number in zip(names, found, strict=True) if number is not None}


@lru_cache(maxsize=4)  # plans and loaders ask for the same names
def _match(patterns: tuple[str, ...], names: tuple[str, ...], field: str) -> list[int | None]:
    request = json.dumps((patterns, names))  # ASCII, whatever the names have
    try:
        done = subprocess.run(COMMAND, input=request, capture_output=True, text=True, timeout=WALL_SECONDS, check=True)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
        raise ConfigError(
            f"config.json: the regular expressions of {FIELD}'s {field} could not be matched in {CPU_SECONDS} seconds "
            "of CPU time; write them without repetitions inside of repetitions, or name the modules"
        ) from None
    result: int | list[int | None] = json.loads(done.stdout)
    if isinstance(result, int):
        raise refuse(field, patterns[result], "regular expressions of Python")
    return result

"""Process that matches names with the regular expressions of a checkpoint, see ``checkpoint/patterns.py``.

It imports nothing else of the package, so that it starts in milliseconds.
"""

from __future__ import annotations

import json
import re
import resource
import sys
import warnings

CPU_SECONDS = 20


def main() -> None:
    """Reads patterns and names from stdin, and writes the index of the first pattern that matches each name, or null.

    If a pattern is no regular expression of Python, the output is its index.
    """
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))  # the kernel ends the process after it
    warnings.simplefilter("ignore")
    patterns, names = json.load(sys.stdin)
    compiled = []
    for number, pattern in enumerate(patterns):
        try:
            compiled.append(re.compile(pattern))
        except (re.error, RecursionError, OverflowError):
            json.dump(number, sys.stdout)
            return
    json.dump([next((n for n, own in enumerate(compiled) if own.match(name)), None) for name in names], sys.stdout)


if __name__ == "__main__":
    main()

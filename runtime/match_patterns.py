"""Process that matches names with regular expressions of others, see ``untrusted_patterns.py``.

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
    """Reads patterns, the form that each is put into, the method, "match" or "fullmatch", and names from stdin.

    It writes the index of the first pattern that matches each name, with the end of the match, or null. If a pattern is
    no regular expression of Python, alone or in its form, the output is an object with its index and the error.
    """
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))  # the kernel ends the process after it
    warnings.simplefilter("ignore")
    patterns, form, method, names = json.load(sys.stdin)
    matches = []
    for number, pattern in enumerate(patterns):
        try:
            re.compile(pattern)
            matches.append(getattr(re.compile(form.format(pattern)), method))
        except (re.error, RecursionError, OverflowError) as error:
            json.dump({"pattern": number, "error": str(error)}, sys.stdout)
            return
    found = [next(((n, own.end()) for n, one in enumerate(matches) if (own := one(name))), None) for name in names]
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()

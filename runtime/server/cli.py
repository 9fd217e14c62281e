"""``python -m runtime.server``: parse first, import what serves only then, so that ``--help`` answers at once."""

from __future__ import annotations

import os
import sys

from runtime.config import parse
from runtime.errors import ConfigError


def main(argv: list[str] | None = None) -> int:
    """The process's exit code: 0 after a drain, 1 with one sentence on stderr when the server cannot start."""
    try:
        config = parse(sys.argv[1:] if argv is None else argv, os.environ)
        from runtime.server.serve import run

        return run(config)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1

"""``python -m runtime.server``: parse first, import what serves only then, so that ``--help`` answers at once."""

from __future__ import annotations

import logging
import os
import sys

import runtime
from runtime.config import log_format, parse
from runtime.errors import ConfigError


def main(argv: list[str] | None = None) -> int:
    """The process's exit code: 0 after a drain, 1 with one sentence on stderr when the server cannot start.

    The sentence is a line of the log in the format that --log-format sets.
    """
    runtime.wait_passively()  # the ranks of other nodes get this process's environment
    arguments = sys.argv[1:] if argv is None else argv
    try:
        config = parse(arguments, os.environ)
        from runtime.server.launcher import run

        return run(config)
    except ConfigError as error:
        logging.shutdown()  # the sentence is the last line: Kubernetes shows it as the reason of the end
        if log_format(arguments, os.environ) == "json":
            from runtime.server.logs import fatal_line

            print(fatal_line(str(error)), file=sys.stderr)
        else:
            print(f"error: {error}", file=sys.stderr)
        return 1

"""Main module of a rank of a server's replica: a ``runtime.executor.rank_worker`` with the server's log format."""

from __future__ import annotations

import sys

from runtime.child_process import exit_with_parent
from runtime.executor import rank_worker
from runtime.server import logs


def main(argv: list[str]) -> int:
    level, form, *arguments = argv
    exit_with_parent()
    return rank_worker.main(arguments, prepare=lambda: logs.configure_logging(level, form, "rank"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""The compile worker of ``compiler.py``: ``python -m runtime.kernels.compile_worker DESCRIPTOR``.

It writes results to the descriptor, because packages may print to standard output when they are imported. It ends with
its parent, also while it imports torch and Triton, which takes seconds.
"""

from __future__ import annotations

import os
import sys

from runtime.child_process import exit_with_parent


def main() -> int:
    exit_with_parent()
    with os.fdopen(int(sys.argv[1]), "wb") as results:
        from runtime.kernels.compiler import run_jobs

        run_jobs(sys.stdin.buffer, results)
    return 0


if __name__ == "__main__":
    sys.exit(main())

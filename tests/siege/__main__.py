"""The entry point of ``python -m tests.siege``. Imports nothing at the top: child processes import this file again."""

import sys

if __name__ == "__main__":
    from tests.siege.cli import main

    sys.exit(main())

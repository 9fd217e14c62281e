"""``python -m tests.siege``. Nothing is imported for children, which import this file again."""

import sys

if __name__ == "__main__":
    from tests.siege.cli import main

    sys.exit(main())

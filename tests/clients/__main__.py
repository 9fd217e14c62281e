"""Manages clients: `python -m tests.clients lock NAME...` resolves locks again, `table` writes the list in
docs/guide/clients.md, `build [NAME...]` builds environments."""

import sys

from tests.clients.catalogue import FOLDER, clients, with_table
from tests.clients.environments import environment, lock

PAGE = FOLDER.parents[1] / "docs" / "guide" / "clients.md"


def main() -> None:
    work, *names = sys.argv[1:] or [""]
    if work == "lock" and names:
        for name in names:
            lock(FOLDER / name)
    elif work == "table":
        PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    elif work == "build":
        for client in clients():
            if not names or client.name in names:
                print(environment(client), flush=True)
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()

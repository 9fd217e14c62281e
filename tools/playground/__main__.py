"""Makes the files of the playground that come from real runs: its recording, the screenshots and the animation.

``python -m tools.playground record`` writes `RECORDING`. ``python -m tools.playground screenshots`` writes images to
`IMAGES`. Both start the demo model.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from runtime.bench.started import running
from tools.playground import recording, screenshots

ROOT = Path(__file__).resolve().parents[2]
RECORDING = ROOT / "runtime" / "server" / "playground" / "recording.json"
IMAGES = ROOT / "docs" / "images"
PROMPT = "Tell me a story."


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.playground", description=__doc__)
    parser.add_argument("command", choices=("record", "screenshots"))
    parser.add_argument("names", nargs="*", help="screenshots to make; default: all")
    options = parser.parse_args(arguments)
    served = argparse.Namespace(url=None, arch=None, server_args="")
    with running(served, None) as url:
        if options.command == "record":
            RECORDING.write_text(recording.record(url, PROMPT), encoding="utf-8")
            return
        IMAGES.mkdir(parents=True, exist_ok=True)
        screenshots.make_all(url, IMAGES, options.names)


if __name__ == "__main__":
    main()

"""Draws the Mermaid diagrams of pages for the site: ``python -m tools.docs.diagrams MERMAID_MIN_JS``.

Pages of the site load no script that draws diagrams. The argument is `dist/mermaid.min.js` of the npm package mermaid,
which is not part of this repository. Chromium runs it. The name of a picture has a digest of its diagram. A diagram
without a picture is shown as text (`tools.docs.site`). Pictures have a white background, also in dark mode.
"""

from __future__ import annotations

import argparse
import html
import re
import subprocess
import tempfile
from pathlib import Path

from tools.docs.site import MERMAID, ROOT, diagram_of

PAGE = """<html><body><pre id="source">{source}</pre><div id="picture"></div><script src="{script}"></script><script>
mermaid.initialize({{startOnLoad: false, theme: "neutral", flowchart: {{htmlLabels: false}}}});
mermaid.render("diagram", document.getElementById("source").textContent).then(
  (result) => {{ document.getElementById("picture").innerHTML = result.svg; }});
</script></body></html>"""


def draw(source: str, script: Path) -> str:
    """Returns a diagram as SVG.

    Raises:
        ValueError: Mermaid cannot draw the diagram.
    """
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "diagram.html"
        page.write_text(PAGE.format(source=html.escape(source), script=script.resolve().as_uri()), encoding="utf-8")
        command = [
            "chromium",
            "--headless",
            "--no-sandbox",
            "--allow-file-access-from-files",
            "--virtual-time-budget=8000",
        ]
        dom = subprocess.run([*command, "--dump-dom", page.as_uri()], capture_output=True, text=True, check=True).stdout
    picture = re.search(r'<div id="picture">(<svg.*</svg>)</div>', dom, re.DOTALL)
    if picture is None:
        raise ValueError(f"Mermaid drew nothing: {source}")
    return on_white(picture[1])


def on_white(picture: str) -> str:
    """Returns an SVG with a white background, because its edges are dark and the site has a dark mode."""
    return re.sub(r'(<svg [^>]*?\bstyle=")', r"\1background-color: white; ", picture, count=1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        prog="python -m tools.docs.diagrams", description="Draws the Mermaid diagrams that have no picture yet."
    )
    parser.add_argument("script", metavar="MERMAID_MIN_JS", type=Path)
    mermaid = parser.parse_args().script
    for path in sorted((ROOT / "docs").rglob("*.md")):
        for found in MERMAID.finditer(path.read_text(encoding="utf-8")):
            picture = ROOT / "docs" / diagram_of(found[1])
            if not picture.exists():
                picture.write_text(draw(found[1], mermaid) + "\n", encoding="utf-8")
                print(picture)

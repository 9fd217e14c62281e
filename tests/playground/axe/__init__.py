"""Accessibility checks with axe-core, from a lock that names its version and hash."""

import functools
import hashlib
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from selenium.webdriver import Chrome

LOCK = Path(__file__).parent / "package-lock.json"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "unmask" / "axe"
RUN = """
const done = arguments[arguments.length - 1];
axe.run(document, {resultTypes: ["violations"]}).then((results) => done(results.violations.map(
    (found) => `${found.id}: ${found.help}: ${found.nodes.map((node) => node.target).join(", ")}`)));
"""


def violations(browser: Chrome) -> list[str]:
    """Returns the rules that the page violates, each with its elements."""
    browser.execute_script(_source())
    found: Any = browser.execute_async_script(RUN)
    return list(found)


@functools.cache
def _source() -> str:
    """Returns axe-core's script, which npm installs once per lock."""
    folder = CACHE / hashlib.sha256(LOCK.read_bytes()).hexdigest()[:16]
    script = folder / "node_modules" / "axe-core" / "axe.min.js"
    if not script.exists():
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("package.json", "package-lock.json"):
            shutil.copy(LOCK.parent / name, folder)
        subprocess.run(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"], cwd=folder, check=True)
    return script.read_text(encoding="utf-8")

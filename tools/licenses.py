"""Licenses of an image's Python packages and of this project, as SPDX expression: ``python -m tools.licenses IMAGE``.

It reads the metadata of the packages in this environment. The label of the image in the Dockerfile has the same
expression.
"""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, distribution

from packaging.licenses import canonicalize_license_expression

from tools.sbom import CONSTRAINTS, PIN

NVIDIA = "LicenseRef-NVIDIA-Proprietary"
# Names of licenses in the metadata of packages that are no SPDX identifiers.
SPDX = {
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache 2.0": "Apache-2.0",
    "Apache 2.0 License": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "BSD": "BSD-3-Clause",
    "BSD License": "BSD-3-Clause",
    "ISC License": "ISC",
    "MIT License": "MIT",
}


def expression(image: str) -> str:
    """Returns the licenses of an image, "operator" or "runtime". Where a package offers a choice, it takes the first.

    Raises:
        InvalidLicenseExpression: a package states a license that is neither an SPDX identifier nor listed here.
    """
    found = {"Apache-2.0"}
    for name, _, marker in PIN.findall((CONSTRAINTS / f"{image}.txt").read_text(encoding="utf-8")):
        if name.startswith("nvidia-") or name == "cuda-toolkit":  # absent here after make setup TORCH=cpu
            found.add(NVIDIA)
            continue
        try:
            metadata = distribution(name).metadata
        except PackageNotFoundError:
            if marker:  # it is for another platform
                continue
            raise
        classifiers = [text.rpartition(" :: ")[2] for text in metadata.get_all("Classifier", []) if "License" in text]
        stated = metadata["License-Expression"] or metadata["License"] or classifiers[0]
        chosen = stated.strip().splitlines()[0].partition(" OR ")[0]
        found |= {SPDX.get(part, part) for part in chosen.split(" AND ")}
    return str(canonicalize_license_expression(" AND ".join(sorted(found))))


if __name__ == "__main__":
    print(expression(sys.argv[1]))

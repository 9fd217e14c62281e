"""DiffuCoder: Dream under a name of its own, with a third token that ends an answer (docs/models/recipes.md)."""

from __future__ import annotations

from dataclasses import replace

from runtime.models.base import register_family
from runtime.models.dream import DREAM

DIFFUCODER = register_family(
    replace(
        DREAM,
        key="diffucoder",
        detect=lambda config: False,  # nothing in config.json tells it from Dream
        architectures=(),
        eos_ids=(151643, 151645, 151667),
    )
)

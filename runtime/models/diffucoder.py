"""The family DiffuCoder: Dream with a third end-of-sequence token (docs/models/recipes.md)."""

from __future__ import annotations

from dataclasses import replace

from runtime.models.base import register_family
from runtime.models.dream import DREAM

DIFFUCODER = register_family(
    replace(
        DREAM,
        key="diffucoder",
        detect=lambda config: False,
        same_config_as="dream",
        architectures=(),
        eos_ids=(151643, 151645, 151667),
    )
)

"""Model families, one file each. Importing this package registers them; add yours with one line here."""

from runtime.models import dream_reasoner, llada2, sdar, sdar_moe, stable_diffcoder
from runtime.models.base import Facts, Family, ForwardBatch, families, register_family, resolve_family

__all__ = [
    "Facts",
    "Family",
    "ForwardBatch",
    "dream_reasoner",
    "families",
    "llada2",
    "register_family",
    "resolve_family",
    "sdar",
    "sdar_moe",
    "stable_diffcoder",
]

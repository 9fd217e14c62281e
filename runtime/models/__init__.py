"""Model families, one file each. Importing this package registers them; add yours with one line here."""

from runtime.models import llada2
from runtime.models.base import Facts, Family, ForwardBatch, families, register_family, resolve_family

__all__ = ["Facts", "Family", "ForwardBatch", "families", "llada2", "register_family", "resolve_family"]

"""The typed resource: `parse` turns the API server's JSON into a `DiffusionLMService` or raises `SpecError`.

One file for each section of the spec. `tools/` writes the CustomResourceDefinition and its docs from the same models.
Loads no torch.
"""

from unmask_operator.api.errors import SpecError
from unmask_operator.api.service import DiffusionLMService, parse
from unmask_operator.api.spec import Spec

__all__ = ["DiffusionLMService", "Spec", "SpecError", "parse"]

"""Typed models of the custom resource, one module per section of the spec.

`parse` converts the API server's JSON to a `DiffusionLMService` or raises `SpecError`. `tools/` generates the
CustomResourceDefinition and its documentation from the same models. Importing this package does not import torch.
"""

from unmask_operator.api.service import DiffusionLMService, SpecError, parse
from unmask_operator.api.spec import Spec

__all__ = ["DiffusionLMService", "Spec", "SpecError", "parse"]

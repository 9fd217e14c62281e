"""Caches what an unmasking algorithm derives from the decoding values of a request."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from runtime.algorithms.base import SoftEmbeddingParams, UnmaskingAlgorithm
from runtime.request.field_spec import Value

CACHE_SIZE = 256  # most requests use the defaults


class ResolvedParams(NamedTuple):
    """Results of the methods of `UnmaskingAlgorithm` with these names."""

    required_stats: int
    may_revise: bool
    soft_embedding_params: SoftEmbeddingParams | None
    param_row: tuple[float, ...]


def resolve_params(algorithm: UnmaskingAlgorithm, values: Mapping[str, Value]) -> ResolvedParams:
    """Returns the parameters for values of the fields of the algorithm and of the strategy."""
    return _resolve_params(algorithm, tuple(values.items()))


@lru_cache(maxsize=CACHE_SIZE)
def _resolve_params(algorithm: UnmaskingAlgorithm, items: tuple[tuple[str, Value], ...]) -> ResolvedParams:
    values = dict(items)
    return ResolvedParams(
        int(algorithm.required_stats(values)),
        algorithm.may_revise(values),
        algorithm.soft_embedding_params(values),
        tuple(algorithm.param_row(values)),
    )

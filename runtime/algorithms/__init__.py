"""Unmasking algorithms, one file each. Importing this package registers them; a new one needs one line here."""

from runtime.algorithms import (  # noqa: F401  they register themselves
    credit,
    dmax,
    dynamic,
    edit,
    entropy_bound,
    factor,
    fixed,
    hierarchical,
    insert_delete,
    local_leap,
    noise,
    sequential,
    threshold,
)
from runtime.algorithms.base import (
    BlockBatch,
    BlockUpdate,
    EditTokens,
    LogitStat,
    UnmaskingAlgorithm,
    algorithm_keys,
    algorithms_for,
    algorithms_with_edit_tokens,
    get_algorithm,
    register_algorithm,
)

__all__ = [
    "BlockBatch",
    "BlockUpdate",
    "EditTokens",
    "LogitStat",
    "UnmaskingAlgorithm",
    "algorithm_keys",
    "algorithms_for",
    "algorithms_with_edit_tokens",
    "get_algorithm",
    "register_algorithm",
]

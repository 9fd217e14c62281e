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

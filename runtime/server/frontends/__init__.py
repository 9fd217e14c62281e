"""Several processes that speak HTTP over the same backends (--frontend-processes)."""

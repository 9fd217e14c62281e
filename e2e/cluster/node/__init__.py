"""The node level of test clusters: one node that runs pods, in its own network namespace."""

"""The second level: one node that runs pods, in a network namespace of its own."""

"""The builtin autoscaler. It keeps its samples in memory and decides; the shell writes ``spec.replicas``."""

"""The builtin autoscaler: scrapes pods, holds samples in memory and decides the value of ``spec.replicas``."""

"""Tests against real Kubernetes clusters. `e2e.cluster` starts these clusters."""

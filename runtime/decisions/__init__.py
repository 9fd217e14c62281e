"""Decisions: typed questions about a state, answered with probabilities (docs/guide/decisions.md)."""

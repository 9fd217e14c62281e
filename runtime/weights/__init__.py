"""Checkpoints: resolving, reading, and loading into a model."""

"""Training of the demo checkpoint and of its adapter."""

"""Training of the checkpoints that the repository ships. Nothing in runtime/ imports it."""

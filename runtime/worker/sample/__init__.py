"""Sampling: logits processors, candidates, constrained decoding, and the output of the unmasking algorithms."""

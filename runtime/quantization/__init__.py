"""Quantized weights: the formats in which layers keep them, and how checkpoints store them."""

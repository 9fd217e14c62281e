"""Adapters of low rank in PEFT's directories: what they say, their tensors, and weights merged with them."""

"""Fused mixture of experts on a GPU: tokens aligned by expert, two grouped GEMMs, and the weighted sum."""

"""Benchmarks for developers: of parts of a step, and of several ranks. No image and no distribution contains them."""

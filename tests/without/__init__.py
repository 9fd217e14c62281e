"""Runs the tests in a copy of the repository without some entries (strategies, algorithms, model families)."""

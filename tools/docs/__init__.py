"""Generators of the tables in docs/. Each module writes its tables into one page."""

"""Structured output: compiles grammars, caches them, and matches each request's output against its grammar."""

"""Evaluates the conditions. A condition that needs more than one function has its own module."""

"""The conditions, a module for each that needs more than one function."""

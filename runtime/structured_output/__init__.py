"""Grammars that answers keep to: compiled once, and how far each request's answer has come in its own."""

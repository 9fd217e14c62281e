"""Status of single pods and their containers, and what their Events add."""

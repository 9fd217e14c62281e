"""Commands of ``unmask`` about models that no server runs: which there are, whether they fit, and their download."""

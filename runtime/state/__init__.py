"""What strategies decide on and the engine carries out: a request with its blocks, and a step as plain arrays."""

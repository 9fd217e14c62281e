"""Parameters and validation of requests, messages of the engine, and the state of outputs. No torch."""

"""LoRA adapters in PEFT's format: configuration, checkpoints, weights beside a model, and merged weights."""

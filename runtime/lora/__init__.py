"""LoRA adapters in PEFT's format: configuration, checkpoints, unmerged weights and merged weights."""

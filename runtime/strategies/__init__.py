"""Decoding strategies, one file each. Importing this package registers them; a new one needs one line here."""

from runtime.strategies import d2f, diffusion_gemma, dmax, fast_dllm_v2, full, multi_bd, nemotron_diffusion  # noqa: F401  they register themselves

"""The runtime's decoding strategies. Written by `make crds` from its registry."""

from typing import Literal

DecodingStrategy = Literal[
    "D2f",
    "DiffusionGemma",
    "Dmax",
    "FastDllmV2",
    "Full",
    "MultiBd",
    "NemotronDiffusion",
]  # as the resource spells them

NAMES = (
    "d2f",
    "diffusion_gemma",
    "dmax",
    "fast_dllm_v2",
    "full",
    "multi_bd",
    "nemotron_diffusion",
)  # as the flag does

# blocks that tile from the prompt's end begin anywhere in a page
ANY_PAGE = (
    "D2f",
    "DiffusionGemma",
    "Full",
    "NemotronDiffusion",
)

# a step of a request is not bufferSize and one more blocks
OWN_STEP = (
    "FastDllmV2",
    "Full",
    "NemotronDiffusion",
)

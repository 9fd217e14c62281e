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
]

"""The runtime's decoding strategies. Written by `make crds` from its registry."""

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

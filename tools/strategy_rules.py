"""The runtime's decoding strategies. Written by `make crds` from its registry."""

# blocks start at the end of the prompt, so their size is independent of the page size
ANY_PAGE = (
    "D2f",
    "DiffusionGemma",
    "Full",
    "NemotronDiffusion",
)

# a step of one request does not have bufferSize + 1 blocks
OWN_STEP = (
    "FastDllmV2",
    "Full",
    "NemotronDiffusion",
)

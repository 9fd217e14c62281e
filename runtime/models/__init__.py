"""Model families, one file each. Importing this package registers them; add yours with one line here."""

from runtime.models import (  # noqa: F401  they register themselves
    a2d,
    diffucoder,
    diffullama,
    diffusion_gemma,
    dream,
    dream_reasoner,
    fast_dllm_v2,
    illada,
    llada,
    llada2,
    llada2dot2,
    llada_moe,
    nemotron_diffusion,
    rnd1,
    sdar,
    sdar_moe,
    stable_diffcoder,
)

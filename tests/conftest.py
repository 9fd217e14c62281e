"""Hypothesis profiles: `make test` runs a fixed, small set; `pytest --hypothesis-profile=thorough` searches anew."""

import torch
from hypothesis import HealthCheck, Phase, settings

torch.set_num_threads(1)  # tiny tensors: more threads only wait for each other, ten times as long

_COMMON = {
    "deadline": None,
    "report_multiple_bugs": False,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large],
    "phases": [Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],  # "explain" takes minutes on these
}
settings.register_profile("ci", derandomize=True, database=None, max_examples=100, **_COMMON)
settings.register_profile("thorough", max_examples=3000, print_blob=True, **_COMMON)
settings.load_profile("ci")

"""Hypothesis profiles. The default runs the same few examples each time; `thorough` runs many random ones.

`--hypothesis-profile=thorough` selects the latter.
"""

import os

from hypothesis import HealthCheck, Phase, settings

# With the tiny tensors of tests, several threads are ten times slower than one. The variable is set instead of calling
# torch, because most tests of the operator never import torch.
os.environ.setdefault("OMP_NUM_THREADS", "1")

_COMMON = {
    "deadline": None,
    "report_multiple_bugs": False,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large],
    "phases": [Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],  # the phase "explain" takes minutes
}
settings.register_profile("ci", derandomize=True, database=None, max_examples=50, **_COMMON)
# UNMASK_EXAMPLES multiplies the number of examples of the default profile.
THOROUGH = 50 * int(os.environ.get("UNMASK_EXAMPLES", "60"))
settings.register_profile("thorough", max_examples=THOROUGH, print_blob=True, **_COMMON)
settings.load_profile("ci")

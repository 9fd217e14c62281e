"""Hypothesis profiles. The default runs the same few examples each time; `--hypothesis-profile=thorough` searches."""

import os

from hypothesis import HealthCheck, Phase, settings

# Tiny tensors: more threads only wait for each other, ten times as long. Not through torch, which most tests of the
# operator never import.
os.environ.setdefault("OMP_NUM_THREADS", "1")

_COMMON = {
    "deadline": None,
    "report_multiple_bugs": False,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large],
    "phases": [Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],  # "explain" takes minutes on these
}
settings.register_profile("ci", derandomize=True, database=None, max_examples=50, **_COMMON)
# UNMASK_EXAMPLES: times as many examples as in the default profile.
THOROUGH = 50 * int(os.environ.get("UNMASK_EXAMPLES", "60"))
settings.register_profile("thorough", max_examples=THOROUGH, print_blob=True, **_COMMON)
settings.load_profile("ci")

"""Hypothesis profiles, and the marker `quick_cases`.

The default profile runs the same few examples each time; `--hypothesis-profile=thorough` searches anew.
"""

import os
from collections import Counter

import pytest
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
settings.register_profile("thorough", max_examples=3000, print_blob=True, **_COMMON)
settings.load_profile("ci")


@pytest.hookimpl(tryfirst=True)  # before pytest deselects by marker
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the cases of a test behind its first `quick_cases` as `matrix`.

    A case that is selected by its own id is the first of those collected, so it always runs.
    """
    collected: Counter[str] = Counter()
    for item in items:
        if quick := item.get_closest_marker("quick_cases"):
            test = item.nodeid.partition("[")[0]
            collected[test] += 1
            if collected[test] > quick.args[0]:
                item.add_marker("matrix")

"""Hypothesis profiles, and the order of tests.

The default profile runs the same few examples each time. `--hypothesis-profile=thorough` runs many random ones.
"""

import os
from itertools import islice

import pytest
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
settings.register_profile("ci", derandomize=True, database=None, max_examples=30, **_COMMON)
# UNMASK_EXAMPLES multiplies the number of examples of the default profile.
THOROUGH = 50 * int(os.environ.get("UNMASK_EXAMPLES", "60"))
settings.register_profile("thorough", max_examples=THOROUGH, print_blob=True, **_COMMON)
settings.load_profile("ci")


@pytest.hookimpl(trylast=True)  # after tests are deselected
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Lets each worker begin with a part of the tests marked `minutes`. Otherwise they would end last, on one core.

    `--dist worksteal` gives each worker an equal number of consecutive tests, and an idle worker those at the end of
    another's list.
    """
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    long = [item for item in items if item.get_closest_marker("minutes")]
    others = iter([item for item in items if not item.get_closest_marker("minutes")])
    ordered: list[pytest.Item] = []
    for worker in range(workers):
        begun = long[worker::workers]
        share = (len(items) - len(ordered)) // (workers - worker)
        ordered += [*begun, *islice(others, max(0, share - len(begun)))]
    items[:] = [*ordered, *others]

"""Hypothesis profiles: `make test` runs a fixed, small set; `pytest --hypothesis-profile=thorough` searches anew.

While `make test` compiles what tests of the operator run, those come last and wait for it outside their time limits.
What starts clusters is imported for such tests alone: a machine that runs a GPU's tests need not have its packages.
"""

import os
from collections.abc import Iterator

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


def needs_programs(item: pytest.Item) -> bool:
    return any(item.get_closest_marker(name) for name in ("cluster", "programs"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not any(map(needs_programs, items)):
        return
    from e2e.cluster.config import environment

    if environment().building:  # however far that is: every worker has to come to the same order
        items.sort(key=needs_programs)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    if needs_programs(item):
        from e2e.cluster.binaries import wait_built
        from e2e.cluster.config import environment

        wait_built(environment())
    return (yield)

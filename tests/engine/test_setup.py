"""Making an engine from flags."""

from __future__ import annotations

from runtime.config import EngineConfig
from runtime.engine.setup import load_engine


def test_the_share_that_is_loaded_only_grows() -> None:
    told: list[tuple[str, int, int]] = []
    load_engine(EngineConfig(device="cpu"), lambda phase, done, total: told.append((phase, done, total)))
    shares = [done / total for _, done, total in told]
    assert shares == sorted(shares)
    assert [phase for phase, _, _ in told][-2:] == ["weights", "warmup"]
    assert shares[-1] == 1

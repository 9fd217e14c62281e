"""Tests that the program that measures hostile pods reads honest ones and reports the bars that are missed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.siege.scraping import PODS, Cost, answers, measure
from tests.wait import TIMEOUT
from unmask_operator.controller import pod_progress as progress

CHEAP = Cost("metrics of short rows", 1.0, 0.5, 0.05, 10.0, 0)


def test_honest_pods_are_read_and_others_give_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "TIMEOUT_SECONDS", TIMEOUT)
    kinds = answers()
    for kind in ("honest metrics", "honest startup"):
        assert measure(kind, kinds[kind], TIMEOUT).readings == PODS
    for kind in ("metrics of short rows", "metrics in chunks of one byte", "startup of nested lists"):
        assert measure(kind, kinds[kind], TIMEOUT).readings == 0


def test_missed_bars_are_named() -> None:
    assert CHEAP.missed() == []
    assert replace(CHEAP, stall_seconds=0.2).missed() == ["event loop stalled, s: 0.2 (bar 0.1)"]
    assert replace(CHEAP, cpu_seconds=2.0).missed() == ["CPU, s: 2 (bar 1)"]
    assert replace(CHEAP, growth_mb=31.0).missed() == ["memory grew, MB: 31 (bar 30)"]
    assert replace(CHEAP, kind="honest metrics", readings=99).missed() == ["99 of 100 honest pods were read"]

"""Tests of the peak rates of a device: the arithmetic of time windows, and the error without a device."""

import itertools
import json

import pytest
import torch

from runtime.bench import device_peaks
from runtime.bench.__main__ import main
from runtime.bench.device_peaks import measure_rates, rates, table, windows


@pytest.mark.parametrize(
    ("seconds", "edges"),
    [
        (0.5, [0, 10, 50, 200, 500]), (0.005, [0, 5]), (0.01, [0, 10]), (0.06, [0, 10, 50, 60]),
        (0.7, [0, 10, 50, 200, 500, 700]), (3, [0, 10, 50, 200, 500, 1000, 2000, 3000]),
    ],
)  # fmt: skip
def test_windows_reach_to_the_end(seconds, edges):
    assert windows(seconds) == list(itertools.pairwise(edges))


def test_rates_are_of_the_pieces_that_ended_in_a_window():
    # Three pieces of 2 ms; one of 6 ms that began in the window before; none; two of 78 ms together, the first of which
    # began long before; one that ends too late.
    ends = [2, 4, 6, 12, 51, 90, 101]
    found = rates(ends, 2.0, [(0, 10), (10, 20), (20, 50), (50, 100)])
    assert found == pytest.approx([1e3, 2e3 / 6, None, 4e3 / 78])


def test_the_table_marks_windows_without_results():
    rows = [
        {"from_ms": 0, "to_ms": 10, "tflops": 799.04, "tbs": 4.7, "l2_tbs": 6.251},
        {"from_ms": 10, "to_ms": 17.5, "tflops": None, "tbs": None, "l2_tbs": None},
    ]
    assert [line.split() for line in table(rows).splitlines()] == [
        ["ms", "TFLOP/s", "TB/s", "L2", "TB/s"], ["0-10", "799.0", "4.70", "6.25"], ["10-17.5", "-", "-", "-"],
    ]  # fmt: skip


@pytest.mark.gpu
def test_a_device_multiplies_and_reads(tmp_path, monkeypatch):
    monkeypatch.setattr(device_peaks, "SIDE", 2048)
    monkeypatch.setattr(device_peaks, "NUMBERS", 1 << 28)
    assert main(["ceilings", "--seconds", ".06", "--json", str(tmp_path / "ceilings.json")]) == 0
    rows = json.loads((tmp_path / "ceilings.json").read_text())["results"]
    assert [(row["from_ms"], row["to_ms"]) for row in rows] == [(0, 10), (10, 50), (50, 60)]
    assert all(row["tflops"] > 1 and row["tbs"] > 0.1 for row in rows)
    hopper = torch.cuda.get_device_capability()[0] == 9
    assert all(row["l2_tbs"] > row["tbs"] if hopper else row["l2_tbs"] is None for row in rows)


@pytest.mark.gpu
def test_rates_of_a_device_are_measured():
    tflops, tbs = measure_rates(torch.device("cuda", torch.cuda.current_device()))
    assert tflops > 1
    assert 0.05 < tbs < 50

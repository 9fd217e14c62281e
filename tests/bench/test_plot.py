"""Tests of the plots of a benchmark: every curve is in the PNG, and a bad file name is refused before measuring."""

from runtime.bench import plot, serve
from runtime.bench.plot import Curve


def test_a_picture_of_two_curves(tmp_path) -> None:
    file = tmp_path / "two.png"
    plot.draw(file, "title", ("x", "y"), [Curve("a", [(1, 2), (3, 4)], ["p", "q"]), Curve("b", [(2, 1)], ["r"])])
    assert file.read_bytes().startswith(b"\x89PNG")
    one = tmp_path / "one.png"
    plot.draw(one, "title", ("x", "y"), [Curve("a", [(1, 2), (3, 4)], ["p", "q"])])
    assert one.read_bytes() != file.read_bytes()


def test_curves_of_loads_omit_missing_measurements() -> None:
    def load(kind: str, value: float, speed: float, p50: float | None) -> dict:
        latency = {"p50": p50, "p90": None if p50 is None else 2 * p50}
        return {kind: value, "rounds": [{"tokens_per_second": speed, "latency": latency}] * 2}

    loads = [load("clients", 1, 100, 0.01), load("clients", 8, 400, 0.02), load("rate", 5, 50, None)]
    assert serve._curves(loads) == [
        Curve("p50 by clients", [(100, 10.0), (400, 20.0)], ["1", "8"]),
        Curve("p90 by clients", [(100, 20.0), (400, 40.0)], ["1", "8"]),
    ]

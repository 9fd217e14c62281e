"""`python -m tools.bench TOOL`: each tool is a module of this package, loaded only when it is selected."""

from __future__ import annotations

from runtime.bench.__main__ import run

TOOLS = {
    "ranks": "time served steps of an architecture with random weights on one GPU and on several",
    "collectives": "time single all-reduces of tensor parallel layers, by rows of a step",
    "host": "the Python cost of a step, with a model that computes nothing",
    "draw": "draw results of `runtime.bench` steps or serve as curves",
}

if __name__ == "__main__":
    raise SystemExit(run("tools.bench", TOOLS))

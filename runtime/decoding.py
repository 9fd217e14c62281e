"""The `decoding` part of a request, resolved: decoding.md 3.1 (precedence and modes) and 3.2."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from runtime.engine.io import DecodingParams, EngineInfo
from runtime.errors import RequestError
from runtime.fields import flag, integer, number, refuse, shown

if TYPE_CHECKING:
    from runtime.params import SamplingParams

MODES: Mapping[str, Mapping[str, Mapping[str, float]]] = {
    "threshold": {
        "speed": {"accept_threshold": 0.7},
        "balanced": {"accept_threshold": 0.9},
        "quality": {"accept_threshold": 0.97},
    },
    "edit": {
        "speed": {"accept_threshold": 0.5, "edit_threshold": 0.0},
        "balanced": {"accept_threshold": 0.6, "edit_threshold": 0.3},
        "quality": {"accept_threshold": 0.7, "edit_threshold": 0.5},
    },
}
THRESHOLDS = (
    "accept_threshold",
    "edit_threshold",
    "remask_threshold",
    "add_block_threshold",
    "semi_complete_threshold",
    "token_stability_threshold",
)
# Fields that mean something to some algorithms only: given with another one they are refused, not ignored.
ONLY_WITH: Mapping[str, tuple[str, ...]] = {
    "mode": ("threshold", "edit"),
    "accept_threshold": ("threshold", "edit"),
    "max_steps_per_block": ("threshold", "edit"),
    "remask_threshold": ("threshold",),
    "edit_threshold": ("edit",),
    "max_post_edit_steps": ("edit",),
    "penalty_lambda": ("edit",),
    "steps": ("fixed",),
}
NEUTRAL: Mapping[str, float] = {"remask_threshold": 0, "penalty_lambda": 0}  # says nothing to any algorithm
FIELDS = (
    "mode",
    "algorithm",
    *THRESHOLDS,
    "max_post_edit_steps",
    "penalty_lambda",
    "max_steps_per_block",
    "steps",
    "confidence_metric",
    "local_leap",
    "force_single_batch",
    "block_length",
)


def resolve_decoding(params: SamplingParams, info: EngineInfo, blocks: int, path: str = "decoding") -> DecodingParams:
    """Every decoding value of a request: its own field, else its mode's, else the server's (`info.defaults`).

    `blocks` is the number of blocks that the answer touches. Raises RequestError naming the field.
    """
    given = _given(params.decoding, path)
    algorithm = _algorithm(params, given, info, path)
    for name, algorithms in ONLY_WITH.items():
        if name in given and algorithm not in algorithms and NEUTRAL.get(name) != given[name]:
            raise refuse(
                f"{path}.{name}",
                f"has no meaning with the {algorithm} algorithm, only with {' and '.join(algorithms)}; leave it out",
            )
    _check_unbuilt(params, given, info, path)
    defaults = info.defaults
    mode = _mode(given, algorithm, path)

    def share(name: str) -> float:
        return number(f"{path}.{name}", given.get(name), 0, 1, default=mode.get(name, getattr(defaults, name)))

    remask = share("remask_threshold")
    return DecodingParams(
        algorithm=algorithm,
        accept_threshold=share("accept_threshold"),
        edit_threshold=share("edit_threshold"),
        remask_threshold=remask if algorithm == "threshold" else 0.0,
        add_block_threshold=share("add_block_threshold"),
        semi_complete_threshold=share("semi_complete_threshold"),
        token_stability_threshold=share("token_stability_threshold"),
        max_post_edit_steps=integer(
            f"{path}.max_post_edit_steps",
            given.get("max_post_edit_steps"),
            0,
            2**31,
            default=defaults.max_post_edit_steps,
        ),
        penalty_lambda=number(
            f"{path}.penalty_lambda", given.get("penalty_lambda"), 0, math.inf, default=defaults.penalty_lambda
        ),
        max_steps_per_block=integer(
            f"{path}.max_steps_per_block",
            given.get("max_steps_per_block"),
            1,
            2**31,
            default=defaults.max_steps_per_block,
        ),
        steps=_steps(params, given, blocks, defaults.steps, path),
    )


def _given(decoding: object, path: str) -> dict[str, Any]:
    """The fields that were set; null is the same as leaving one out."""
    if decoding is None:
        return {}
    if not isinstance(decoding, Mapping):
        raise refuse(path, "must be an object of decoding fields")
    for name in decoding:
        if name not in FIELDS:
            raise RequestError(
                f"{path}: {shown(name)} is no decoding field; there are {', '.join(FIELDS)}",
                param=f"{path}.{name}" if isinstance(name, str) and len(name) < 60 else path,
            )
    return {name: value for name, value in decoding.items() if value is not None}


def _algorithm(params: SamplingParams, given: Mapping[str, Any], info: EngineInfo, path: str) -> str:
    name = given.get("algorithm")
    if params.num_denoising_steps is not None:  # a number of steps is the fixed algorithm's
        if name not in (None, "fixed"):
            raise refuse("num_denoising_steps", f"has no meaning with {path}.algorithm {shown(name)}, only with fixed")
        name = "fixed"
    if name is None:
        name = info.defaults.algorithm
    if not isinstance(name, str) or name not in info.algorithms:
        raise refuse(f"{path}.algorithm", f"{shown(name)} is not built; there are {', '.join(sorted(info.algorithms))}")
    return name


def _mode(given: Mapping[str, Any], algorithm: str, path: str) -> Mapping[str, float]:
    if "mode" not in given:
        return {}
    modes = MODES[algorithm]
    name = given["mode"]
    if not isinstance(name, str) or name not in modes:
        raise refuse(f"{path}.mode", f"must be one of {', '.join(modes)}")
    return modes[name]


def _steps(params: SamplingParams, given: Mapping[str, Any], blocks: int, default: int, path: str) -> int:
    """Steps a block. dlmserve's number is the total over the answer's blocks, shared out evenly."""
    steps = integer(f"{path}.steps", given.get("steps"), 1, 2**31, default=default)
    total = integer("num_denoising_steps", params.num_denoising_steps, 1, 2**31, default=None)
    if total is None:
        return steps
    if "steps" in given:
        raise refuse("num_denoising_steps", f"says the same as {path}.steps; give one of them")
    if total < blocks:
        raise refuse("num_denoising_steps", f"{total} is less than the {blocks} blocks of the answer need, one each")
    return total // blocks


def _check_unbuilt(params: SamplingParams, given: Mapping[str, Any], info: EngineInfo, path: str) -> None:
    for name, value in ((f"{path}.block_length", given.get("block_length")), ("block_length", params.block_length)):
        length = integer(name, value, 1, 2**31, default=None)
        if length not in (None, info.block_size):
            raise refuse(name, f"{length} is not the server's block size, {info.block_size}; leave it out")
    for name, value in (
        (f"{path}.force_single_batch", given.get("force_single_batch")),
        ("force_single_batch", params.force_single_batch),
        ("use_local_leap", params.use_local_leap),
    ):
        if flag(name, value):
            raise refuse(name, "is not built yet; leave it out")
    if "local_leap" in given:
        raise refuse(f"{path}.local_leap", "is not built yet; leave it out")
    if given.get("confidence_metric", "max_prob") != "max_prob":
        raise refuse(f"{path}.confidence_metric", "only max_prob is built yet")

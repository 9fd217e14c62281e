"""The `decoding` part of a request, resolved against what the engine's rules and strategy declare (decoding.md 3.1)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from runtime.engine.description import Field, RuleInfo, Value, values_of
from runtime.engine.io import DecodingParams, EngineInfo
from runtime.errors import RequestError
from runtime.fields import choice, declared, flag, integer, refuse, shown

if TYPE_CHECKING:
    from runtime.params import SamplingParams

# Fields that no rule declares: which rule and mode, and what this version only knows how to refuse.
CHOOSING = ("mode", "algorithm")
UNBUILT = ("confidence_metric", "local_leap", "force_single_batch", "block_length")


def field_names(info: EngineInfo) -> list[str]:
    """Every field of ``decoding`` that some rule or the strategy of this engine knows."""
    declared = [field.name for fields in (info.strategy_fields, *(r.fields for r in info.rules)) for field in fields]
    return list(dict.fromkeys((*CHOOSING, *declared, *UNBUILT)))


def resolve_decoding(params: SamplingParams, info: EngineInfo, blocks: int, path: str = "decoding") -> DecodingParams:
    """Every decoding value of a request: its own field, else its mode's, else the server's default.

    `blocks` is the number of blocks that the answer touches. Raises RequestError naming the field.
    """
    given = _given(params.decoding, info, path)
    rule = _rule(params, given, info, path)
    fields = {field.name: field for field in (*info.strategy_fields, *rule.fields)}
    for name, value in given.items():
        if name not in fields and name not in CHOOSING and name not in UNBUILT:
            _refuse_foreign(name, value, rule, info, path)
    _check_unbuilt(params, given, info, path)
    values = values_of(fields.values()) | _mode(given, rule, info, path)
    values |= {name: declared(f"{path}.{name}", given[name], field) for name, field in fields.items() if name in given}
    if params.num_denoising_steps is not None:
        values["steps"] = _steps(params, given, blocks, path)
    return DecodingParams(algorithm=rule.key, values=values)


def _given(decoding: object, info: EngineInfo, path: str) -> dict[str, Any]:
    """The fields that were set; null is the same as leaving one out."""
    if decoding is None:
        return {}
    if not isinstance(decoding, Mapping):
        raise refuse(path, "must be an object of decoding fields")
    known = field_names(info)
    for name in decoding:
        if name not in known:
            raise RequestError(
                f"{path}: {shown(name)} is no decoding field; there are {', '.join(known)}",
                param=f"{path}.{name}" if isinstance(name, str) and len(name) < 60 else path,
            )
    return {name: value for name, value in decoding.items() if value is not None}


def _rule(params: SamplingParams, given: Mapping[str, Any], info: EngineInfo, path: str) -> RuleInfo:
    name = given.get("algorithm")
    if params.num_denoising_steps is not None:  # a number of steps is the fixed algorithm's
        if name not in (None, "fixed"):
            raise refuse("num_denoising_steps", f"has no meaning with {path}.algorithm {shown(name)}, only with fixed")
        name = "fixed"
    if name is None:
        name = info.default_rule
    rule = info.rule(name) if isinstance(name, str) else None
    if rule is None:
        keys = ", ".join(sorted(rule.key for rule in info.rules))
        raise refuse(f"{path}.algorithm", f"{shown(name)} is not built; there are {keys}")
    return rule


def _refuse_foreign(name: str, value: object, rule: RuleInfo, info: EngineInfo, path: str) -> None:
    """Raises for a field that other rules read and this one does not, unless its value asks for nothing."""
    takers = {other.key: field for other in info.rules for field in other.fields if field.name == name}
    field = next(iter(takers.values()))
    if field.neutral is None or declared(f"{path}.{name}", value, field) != field.neutral:
        raise _no_meaning(f"{path}.{name}", rule, takers)


def _no_meaning(param: str, rule: RuleInfo, takers: Mapping[str, Field | None]) -> RequestError:
    return refuse(
        param, f"has no meaning with the {rule.key} algorithm, only with {' and '.join(sorted(takers))}; leave it out"
    )


def _mode(given: Mapping[str, Any], rule: RuleInfo, info: EngineInfo, path: str) -> Mapping[str, Value]:
    if "mode" not in given:
        return {}
    if not rule.modes:
        raise _no_meaning(f"{path}.mode", rule, {other.key: None for other in info.rules if other.modes})
    return rule.modes[choice(f"{path}.mode", given["mode"], rule.modes)]


def _steps(params: SamplingParams, given: Mapping[str, Any], blocks: int, path: str) -> int:
    """Steps a block. dlmserve's number is the total over the answer's blocks, shared out evenly."""
    total = integer("num_denoising_steps", params.num_denoising_steps, 1, 2**31)
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

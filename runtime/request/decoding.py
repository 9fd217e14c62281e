"""Resolves the field `decoding` of a request.

The unmasking algorithms and the strategy of the engine declare its fields.
docs/decoding-rules.md#values-of-fields lists the sources of a value.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from runtime.errors import RequestError
from runtime.request.dlmserve_compat import merged
from runtime.request.engine_messages import DecodingParams, EngineInfo
from runtime.request.field_spec import BLOCK_LENGTH, SUB_BLOCK, Field, RuleInfo, Value, values_of
from runtime.request.sampling_params import At, SamplingParams
from runtime.request.validation import choice, declared, flag, integer, integral, refuse, shown

# Fields that no rule declares: which rule and mode, and what is the engine's own.
CHOOSING = ("mode", "algorithm")
ALONE = "force_single_batch"
ENGINE = (ALONE, BLOCK_LENGTH)


def field_names(info: EngineInfo) -> list[str]:
    """Every field of ``decoding`` that some rule or the strategy of this engine knows."""
    declared = [field.name for fields in (info.strategy_fields, *(r.fields for r in info.rules)) for field in fields]
    return list(dict.fromkeys((*CHOOSING, *declared, *ENGINE)))


def engine_fields(info: EngineInfo) -> tuple[Field, ...]:
    """Those of `CHOOSING` and `ENGINE`, as this engine has them."""
    modes = tuple(dict.fromkeys(mode for rule in info.rules for mode in rule.modes))
    keys = tuple(rule.key for rule in info.rules)
    return (
        Field(name="mode", kind="choice", choices=modes, default="", help="values of several fields in one word"),
        Field(name="algorithm", kind="choice", choices=keys, default=info.default_rule, help="the acceptance rule"),
        Field(name=BLOCK_LENGTH, kind="integer", low=1, default=info.block_size, help="the server's block size alone"),
        Field(name=ALONE, kind="flag", default=False, help="the request has its forwards to itself"),
    )


def resolve_decoding(
    params: SamplingParams, info: EngineInfo, prompt_len: int, max_tokens: int, path: str = "decoding"
) -> DecodingParams:
    """Every decoding value of a request: its own field, else its mode's, else the server's default.

    Args:
        params: checked by ``params.check_fields``.

    Raises:
        RequestError: naming the field.
    """
    given, spelt = merged(params, _given(params.decoding, info, path), path)
    if not given and params.num_denoising_steps is None:
        return info.defaults()

    def at(name: str) -> str:
        return spelt.get(name, f"{path}.{name}")

    total = params.num_denoising_steps
    shared = total is not None and "fixed" in _takers("steps", info)
    rule = _rule(given, info, at, default="fixed" if shared else info.default_rule)
    fields = {field.name: field for field in (*info.strategy_fields, *rule.fields)}
    for name, value in given.items():
        if name not in fields and name not in CHOOSING and name not in ENGINE:
            _refuse_foreign(at(name), name, value, rule, info)
    _check_block_length(given, info, at)
    own: dict[str, Value] = {}  # what counts in blocks, of a request with blocks of its own
    size = info.block_size
    if BLOCK_LENGTH in fields and BLOCK_LENGTH in given:
        size = int(declared(at(BLOCK_LENGTH), given[BLOCK_LENGTH], fields[BLOCK_LENGTH]))
        own = {f.name: int(f.default) * size // info.block_size for f in fields.values() if f.per_block}
    values = values_of(fields.values()) | own | _mode(given, rule, info, at)
    values |= {name: declared(at(name), given[name], field) for name, field in fields.items() if name in given}
    _check_read(given, fields, values, at)
    if total is not None:
        block_layout = replace(info.block_layout, size=int(values.get(SUB_BLOCK, size)))
        _check_total(total, rule, given, info, block_layout.num_blocks(prompt_len, max_tokens), at)
    alone = flag(at(ALONE), given.get(ALONE))
    return DecodingParams(algorithm=rule.key, values=values, total_steps=total, force_single_batch=alone)


def _given(decoding: object, info: EngineInfo, path: str) -> dict[str, Any]:
    """The fields that were set, by their full names; null is the same as leaving one out."""
    if decoding is None:
        return {}
    declared = (info.strategy_fields, *(rule.fields for rule in info.rules))
    integers = {field.name for fields in declared for field in fields if field.kind == "integer"} | {BLOCK_LENGTH}
    found = _flat(decoding, field_names(info), "", path)
    return {name: integral(value) if name in integers else value for name, value in found.items()}


def _flat(given: object, known: Sequence[str], outer: str, path: str) -> dict[str, Any]:
    """`given` as one level: the entries of an object `x` are ``x.y``. `outer` is "" or "x."."""
    inner = dict.fromkeys(name[len(outer) :].split(".")[0] for name in known if name.startswith(outer))
    if not isinstance(given, Mapping):
        raise refuse(path, f"{shown(given)} is not an object of fields; there are {', '.join(inner)}")
    found: dict[str, Any] = {}
    for name, value in given.items():
        if name not in inner:
            raise RequestError(
                f"{path}: {shown(name)} is no decoding field; there are {', '.join(inner)}",
                param=f"{path}.{name}" if isinstance(name, str) and len(name) < 60 else path,
                code="unknown_field",
            )
        full = outer + name
        if value is not None and full in known:
            found[full] = value
        elif value is not None:
            found |= _flat(value, known, f"{full}.", f"{path}.{name}")
    return found


def _rule(given: Mapping[str, Any], info: EngineInfo, at: At, default: str) -> RuleInfo:
    name = given.get("algorithm", default)
    rule = info.rule(name) if isinstance(name, str) else None
    if rule is None:
        keys = ", ".join(sorted(rule.key for rule in info.rules))
        raise refuse(at("algorithm"), f"{shown(name)} is no acceptance rule of this server; there are {keys}")
    return rule


def _refuse_foreign(param: str, name: str, value: object, rule: RuleInfo, info: EngineInfo) -> None:
    """Raises for a field that other rules read and this one does not, unless its value asks for nothing."""
    field = next((field for other in info.rules for field in other.fields if field.name == name), None)
    if field is None or field.neutral is None or declared(param, value, field) != field.neutral:
        raise _no_meaning(param, rule, _takers(name, info))


def _takers(name: str, info: EngineInfo) -> list[str]:
    """Keys of the rules that read a field."""
    return [rule.key for rule in info.rules if any(field.name == name for field in rule.fields)]


def _no_meaning(param: str, rule: RuleInfo, takers: Iterable[str]) -> RequestError:
    *most, last = sorted(takers) or [""]
    only = f"{', '.join(most)} and {last}" if most else last
    others = f", only with {only}" if only else ""
    return refuse(param, f"has no meaning with the {rule.key} algorithm{others}; leave it out")


def _mode(given: Mapping[str, Any], rule: RuleInfo, info: EngineInfo, at: At) -> dict[str, Value]:
    if "mode" not in given:
        return {}
    if not rule.modes:
        raise _no_meaning(at("mode"), rule, [other.key for other in info.rules if other.modes])
    return rule.modes[choice(at("mode"), given["mode"], rule.modes)]


def _check_total(total: int, rule: RuleInfo, given: Mapping[str, Any], info: EngineInfo, blocks: int, at: At) -> None:
    """dlmserve's number of steps, over all blocks of the answer."""
    takers = _takers("steps", info)
    if rule.key not in takers:
        raise _no_meaning("num_denoising_steps", rule, takers)
    if "steps" in given:
        raise refuse("num_denoising_steps", f"says the same as {at('steps')}; give one of them")
    if total < blocks:
        raise refuse("num_denoising_steps", f"{total} is less than the {blocks} blocks of the answer; each needs one")


def _check_read(given: Mapping[str, Any], fields: Mapping[str, Field], values: Mapping[str, Value], at: At) -> None:
    """Raises for a field that another one's value leaves without a meaning, unless it says what it is anyway."""
    for name, field in fields.items():
        if name in given and field.only is not None and values[name] != field.default:
            other, needed = field.only
            if values[other] != needed:
                raise refuse(at(name), f"has no meaning with {other} {values[other]}, only with {needed}; leave it out")


def _check_block_length(given: Mapping[str, Any], info: EngineInfo, at: At) -> None:
    if any(field.name == BLOCK_LENGTH for field in info.strategy_fields):
        return
    length = integer(at(BLOCK_LENGTH), given.get(BLOCK_LENGTH), 1, 2**31, default=None)
    if length not in (None, info.block_size):
        raise refuse(at(BLOCK_LENGTH), f"{length} is not the server's block size, {info.block_size}; leave it out")

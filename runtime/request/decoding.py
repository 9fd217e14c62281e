"""Resolves the field `decoding` of a request.

The unmasking algorithms and the strategy of the engine declare its fields.
docs/research/decoding-rules.md#values-of-fields lists the sources of a value.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from runtime.errors import RequestError
from runtime.request.engine_messages import DecodingParams, EngineInfo
from runtime.request.field_spec import BLOCK_LENGTH, SUB_BLOCK, AlgorithmInfo, Field, Value, values_of
from runtime.request.sampling_params import PARAMETERS, At, SamplingParams
from runtime.request.validation import check_declared, choice, flag, integer, integral, preview, refuse

FLAT_FIELDS = [field for field in PARAMETERS if field.stands_for]


# Fields that no algorithm declares.
SELECTORS = ("mode", "algorithm")
EXCLUSIVE_BATCH = "force_single_batch"
ENGINE_FIELDS = (EXCLUSIVE_BATCH, BLOCK_LENGTH)


def merge_flat_fields(
    params: SamplingParams, fields: Mapping[str, Any], path: str
) -> tuple[dict[str, Any], dict[str, str]]:
    """Adds the flat fields of a request to its decoding fields.

    Args:
        fields: fields of ``decoding`` by name.
        path: path of ``decoding`` for error messages.

    Returns:
        All fields by name, and the client's name of each field that was set by a flat one.

    Raises:
        RequestError: a flat field and its equivalent are both set.
    """
    found, client_names = dict(fields), {}
    for flat in FLAT_FIELDS:
        value, name = getattr(params, flat.name), flat.stands_for
        if value is None:
            continue
        if name in fields:
            raise refuse(flat.name, f"duplicates {path}.{name}; give one of them")
        found[name] = flat.value_names.get(value, value) if isinstance(value, str) else value
        client_names[name] = flat.name
    if params.use_local_leap:
        if found.get("algorithm", "local_leap") != "local_leap":
            value = preview(found["algorithm"])
            raise refuse("use_local_leap", f"has no meaning with {path}.algorithm {value}, only with local_leap")
        found["algorithm"], client_names["algorithm"] = "local_leap", "use_local_leap"
    return found, client_names


def field_names(info: EngineInfo) -> list[str]:
    """Returns the names of all fields of ``decoding`` of this engine."""
    declared = [
        field.name for fields in (info.strategy_fields, *(r.fields for r in info.algorithms)) for field in fields
    ]
    return list(dict.fromkeys((*SELECTORS, *declared, *ENGINE_FIELDS)))


def check_beside_decoding(names: Iterable[str], info: EngineInfo) -> None:
    """Checks the unknown fields of a request: one of ``decoding`` would have no effect beside it.

    Raises:
        RequestError: a name is that of a field of ``decoding``.
    """
    fields: set[str] = set()
    for name in names:
        fields = fields or {field.split(".")[0] for field in field_names(info)}
        if name in fields:
            form = f'{{"decoding": {{"{name}": ...}}}}'
            raise refuse(name, f"is a field of decoding; send {form}", own=form)


def engine_fields(info: EngineInfo) -> tuple[Field, ...]:
    """Returns the declarations of `SELECTORS` and `ENGINE_FIELDS` for this engine."""
    modes = tuple(dict.fromkeys(mode for algorithm in info.algorithms for mode in algorithm.modes))
    keys = tuple(algorithm.key for algorithm in info.algorithms)
    chosen = info.default_algorithm
    return (
        Field(name="mode", kind="choice", choices=modes, default="", help="a preset of several fields"),
        Field(name="algorithm", kind="choice", choices=keys, default=chosen, help="the unmasking algorithm"),
        Field(
            name=BLOCK_LENGTH, kind="integer", low=1, default=info.block_size, help="only the block size of the server"
        ),
        Field(
            name=EXCLUSIVE_BATCH,
            kind="flag",
            default=info.force_single_batch,
            help="no other request shares the forward passes",
        ),
    )


def resolve_decoding(
    params: SamplingParams, info: EngineInfo, prompt_len: int, max_tokens: int, path: str = "decoding"
) -> DecodingParams:
    """Returns all decoding values of a request: from its field, else from its mode, else the default of the server.

    Args:
        params: validated by ``sampling_params.check_fields``.
        path: path of ``decoding`` for error messages.

    Raises:
        RequestError: a field is invalid.
    """
    fields_set, client_names = merge_flat_fields(params, _fields_set(params.decoding, info, path), path)
    if not fields_set and params.num_denoising_steps is None:
        return info.defaults()

    def at(name: str) -> str:
        return client_names.get(name, f"{path}.{name}")

    total = params.num_denoising_steps
    has_step_total = total is not None and "fixed" in _algorithms_with("steps", info)
    algorithm = _algorithm(fields_set, info, at, default="fixed" if has_step_total else info.default_algorithm)
    fields = {field.name: field for field in (*info.strategy_fields, *algorithm.fields)}
    for name, value in fields_set.items():
        if name not in fields and name not in SELECTORS and name not in ENGINE_FIELDS:
            _refuse_foreign(at(name), name, value, algorithm, info)
    _check_block_length(fields_set, info, at)
    own: dict[str, Value] = {}  # defaults of `per_block` fields for the block size of the request, if it sets one
    size = info.block_size
    if BLOCK_LENGTH in fields and BLOCK_LENGTH in fields_set:
        size = int(check_declared(at(BLOCK_LENGTH), fields_set[BLOCK_LENGTH], fields[BLOCK_LENGTH]))
        default_size = int(fields[BLOCK_LENGTH].default)
        own = {f.name: int(f.default) * size // default_size for f in fields.values() if f.per_block}
    values = values_of(fields.values()) | own | _mode(fields_set, algorithm, info, at)
    values |= {
        name: check_declared(at(name), fields_set[name], field) for name, field in fields.items() if name in fields_set
    }
    _check_conditions(fields_set, fields, values, at)
    if total is not None:
        block_layout = replace(info.block_layout, size=int(values.get(SUB_BLOCK, size)))
        _check_total(total, algorithm, fields_set, info, block_layout.num_blocks(prompt_len, max_tokens), at)
    alone = flag(at(EXCLUSIVE_BATCH), fields_set.get(EXCLUSIVE_BATCH, info.force_single_batch))
    return DecodingParams(algorithm=algorithm.key, values=values, total_steps=total, force_single_batch=alone)


def with_decoding_defaults(info: EngineInfo, decoding: Mapping[str, Any], path: str) -> EngineInfo:
    """Returns the engine with other defaults: those of a request with this ``decoding``.

    Its fields are also the defaults of the other algorithms that have them. Those of its mode are not.

    Args:
        path: name of `decoding` for error messages.

    Raises:
        RequestError: a field is invalid.
    """
    fields_set = _fields_set(decoding, info, path)
    chosen = resolve_decoding(SamplingParams(decoding=decoding), info, 1, 1, path)

    def with_values(fields: Iterable[Field], values: Mapping[str, Value]) -> tuple[Field, ...]:
        return tuple(
            replace(field, default=values[field.name], per_block=field.per_block and field.name not in fields_set)
            for field in fields
        )

    def values_with(algorithm: AlgorithmInfo) -> Mapping[str, Value]:
        if algorithm.key == chosen.algorithm:
            return chosen.values
        known = {field.name for field in (*info.strategy_fields, *algorithm.fields) if "." not in field.name}
        own = {name: value for name, value in fields_set.items() if name in known}
        return resolve_decoding(SamplingParams(decoding=own | {"algorithm": algorithm.key}), info, 1, 1, path).values

    return msgspec.structs.replace(
        info,
        default_algorithm=chosen.algorithm,
        force_single_batch=chosen.force_single_batch,
        strategy_fields=list(with_values(info.strategy_fields, chosen.values)),
        algorithms=[replace(each, fields=with_values(each.fields, values_with(each))) for each in info.algorithms],
    )


def _fields_set(decoding: object, info: EngineInfo, path: str) -> dict[str, Any]:
    """Returns the fields that are set and not null, by their full names."""
    if decoding is None:
        return {}
    declared = (info.strategy_fields, *(algorithm.fields for algorithm in info.algorithms))
    integers = {field.name for fields in declared for field in fields if field.kind == "integer"} | {BLOCK_LENGTH}
    found = _flat(decoding, field_names(info), "", path)
    return {name: integral(value) if name in integers else value for name, value in found.items()}


def _flat(fields_set: object, known: Sequence[str], outer: str, path: str) -> dict[str, Any]:
    """Flattens nested fields: the entry `y` of an object `x` becomes ``x.y``. `outer`: "", or "x." inside `x`."""
    inner = dict.fromkeys(name[len(outer) :].split(".")[0] for name in known if name.startswith(outer))
    if not isinstance(fields_set, Mapping):
        raise refuse(path, f"{preview(fields_set)} is not an object of fields; there are {', '.join(inner)}")
    found: dict[str, Any] = {}
    for name, value in fields_set.items():
        if name not in inner:
            raise RequestError(
                f"{path}: {preview(name)} is no decoding field of this server; there are {', '.join(inner)}",
                param=f"{path}.{name}" if isinstance(name, str) and len(name) < 60 else path,
                code="unknown_field",
            )
        full = outer + name
        if value is not None and full in known:
            found[full] = value
        elif value is not None:
            found |= _flat(value, known, f"{full}.", f"{path}.{name}")
    return found


def _algorithm(fields_set: Mapping[str, Any], info: EngineInfo, at: At, default: str) -> AlgorithmInfo:
    name = fields_set.get("algorithm", default)
    algorithm = info.algorithm(name) if isinstance(name, str) else None
    if algorithm is None:
        keys = ", ".join(sorted(algorithm.key for algorithm in info.algorithms))
        raise refuse(
            at("algorithm"), f"{preview(name)} is not an unmasking algorithm of this server; available: {keys}"
        )
    return algorithm


def _refuse_foreign(param: str, name: str, value: object, algorithm: AlgorithmInfo, info: EngineInfo) -> None:
    """Raises RequestError for a field of other algorithms, unless its value has no effect."""
    field = next((field for other in info.algorithms for field in other.fields if field.name == name), None)
    if field is None or field.neutral is None or check_declared(param, value, field) != field.neutral:
        raise _no_effect(param, algorithm, _algorithms_with(name, info))


def _algorithms_with(name: str, info: EngineInfo) -> list[str]:
    """Returns the keys of the algorithms that have a field."""
    return [algorithm.key for algorithm in info.algorithms if any(field.name == name for field in algorithm.fields)]


def _no_effect(param: str, algorithm: AlgorithmInfo, supporting: Iterable[str]) -> RequestError:
    *others, last = sorted(supporting) or [""]
    only = f"{', '.join(others)} and {last}" if others else last
    hint = f", only with {only}" if only else ""
    return refuse(param, f"has no meaning with the {algorithm.key} algorithm{hint}; leave it out")


def _mode(fields_set: Mapping[str, Any], algorithm: AlgorithmInfo, info: EngineInfo, at: At) -> dict[str, Value]:
    if "mode" not in fields_set:
        return {}
    if not algorithm.modes:
        raise _no_effect(at("mode"), algorithm, [other.key for other in info.algorithms if other.modes])
    return algorithm.modes[choice(at("mode"), fields_set["mode"], algorithm.modes)]


def _check_total(
    total: int, algorithm: AlgorithmInfo, fields_set: Mapping[str, Any], info: EngineInfo, blocks: int, at: At
) -> None:
    """Validates `num_denoising_steps`, the number of steps for all blocks of the output."""
    supporting = _algorithms_with("steps", info)
    if algorithm.key not in supporting:
        raise _no_effect("num_denoising_steps", algorithm, supporting)
    if "steps" in fields_set:
        raise refuse("num_denoising_steps", f"duplicates {at('steps')}; give one of them")
    if total < blocks:
        raise refuse("num_denoising_steps", f"{total} is less than the {blocks} blocks of the answer; each needs one")


def _check_conditions(
    fields_set: Mapping[str, Any], fields: Mapping[str, Field], values: Mapping[str, Value], at: At
) -> None:
    """Raises RequestError for a field that the value of another field disables, unless it has the default."""
    for name, field in fields.items():
        if name in fields_set and field.only is not None and values[name] != field.default:
            other, needed = field.only
            if values[other] != needed:
                raise refuse(at(name), f"has no meaning with {other} {values[other]}, only with {needed}; leave it out")


def _check_block_length(fields_set: Mapping[str, Any], info: EngineInfo, at: At) -> None:
    if BLOCK_LENGTH not in fields_set or any(field.name == BLOCK_LENGTH for field in info.strategy_fields):
        return
    length = integer(at(BLOCK_LENGTH), fields_set[BLOCK_LENGTH], 1, 2**31)
    if length != info.block_size:
        raise refuse(at(BLOCK_LENGTH), f"{length} is not the server's block size, {info.block_size}; leave it out")

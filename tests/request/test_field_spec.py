"""Tests that types, checks, schema and flags agree with the single declaration of each request field."""

import types
import typing
from collections.abc import Mapping, Sequence

import msgspec
import pytest

from runtime.algorithms.base import algorithm_keys, get_algorithm
from runtime.config import FLAGS
from runtime.config.flags import DECODING
from runtime.request.decoding import engine_fields, resolve_decoding
from runtime.request.field_spec import AlgorithmInfo, Field, nested
from runtime.request.sampling_params import PARAMETERS, Parameter, SamplingParams
from runtime.scheduling.strategy import DecodingContext
from runtime.server.generate.protocol import GenerateRequest
from runtime.server.openai.protocol import ChatRequest, CompletionRequest
from runtime.strategies.registry import make_strategy, strategies
from tests.request.test_sampling_params import INFO, refused, spec

TYPES = {
    "integer": {int}, "number": {float}, "flag": {bool}, "text": {str}, "choice": {str}, "texts": {str, Sequence},
    "ids": {Sequence}, "object": {Mapping},
}  # fmt: skip
BOUNDED = [field for field in PARAMETERS if field.kind in ("integer", "number") and not field.stands_for]


@pytest.mark.parametrize("key", algorithm_keys())
def test_nested_values_of_an_algorithm_are_a_request_for_them(key):
    algorithm = get_algorithm(key)
    info = msgspec.structs.replace(
        INFO, algorithms=[AlgorithmInfo(key=key, fields=algorithm.fields, modes=algorithm.modes)], default_algorithm=key
    )
    params = SamplingParams(decoding={"algorithm": key, **nested(info.defaults().values)})
    assert resolve_decoding(params, info, 8, 8) == info.defaults()


def by_name(field: Parameter) -> str:
    return field.name


@pytest.mark.parametrize("field", PARAMETERS, ids=by_name)
def test_the_kind_of_a_field_matches_its_annotation(field):
    annotation = typing.get_type_hints(SamplingParams)[field.name]
    arms = typing.get_args(annotation) if isinstance(annotation, types.UnionType) else (annotation,)
    assert {typing.get_origin(arm) or arm for arm in arms} - {types.NoneType} == TYPES[field.kind]


@pytest.mark.parametrize("field", BOUNDED, ids=by_name)
def test_bounds_are_checked_and_documented_as_declared(field):
    if field.refused:
        refused({field.name: 1}, field.name, "is not supported")
        return
    step = 1 if field.kind == "integer" else 2**-30
    over = [] if field.high is None else [field.high + step * max(1, field.high)]
    for value in (field.low - step, *over, *([field.low] if field.above_low else [])):
        refused({field.name: int(value) if field.kind == "integer" else value}, field.name, "must be")
    body = ChatRequest if field.name == "n" else GenerateRequest
    schema = body.model_json_schema()["properties"][field.name]["anyOf"][0]
    assert schema["type"] == field.kind
    assert schema["exclusiveMinimum" if field.above_low else "minimum"] == field.low
    assert schema["maximum"] == field.high


def test_routes_accept_all_declared_fields():
    declared = {field.name for field in PARAMETERS}
    assert declared == declared & GenerateRequest.model_fields.keys()
    for body in (ChatRequest, CompletionRequest):
        assert declared <= body.model_fields.keys()
    for field in PARAMETERS:
        body = CompletionRequest if field.name == "logprobs" else ChatRequest  # a bool in ChatRequest
        schema = body.model_json_schema()["properties"][field.name]
        assert schema.get("description") == (field.refused or field.help)


@pytest.mark.parametrize("field", [field for field in PARAMETERS if field.stands_for], ids=by_name)
def test_an_alias_refers_to_an_existing_field(field):
    assert field.stands_for in {each.name for each in (*engine_fields(INFO), *fields())}


def test_missing_fields_are_not_checked():
    assert spec(**{field.name: None for field in PARAMETERS if field.name != "n"}).decoding == spec().decoding


def fields() -> list[Field]:
    context = DecodingContext(block_size=32, buffer_size=None, prefix_caching=True, max_model_len=4096)
    every = [field for key in algorithm_keys() for field in get_algorithm(key).fields]
    return every + [field for key in strategies() for field in make_strategy(key, (key,), context).fields]


DEFAULTS = [flag for flag in FLAGS if flag.group == DECODING]


@pytest.mark.all_entries
def test_every_flag_of_decoding_belongs_to_a_field():
    single = {flag.dest for flag in DEFAULTS} - {"decoding"}  # which has all fields
    assert single <= {field.flag or field.name for field in fields()}


def test_flags_of_decoding_accept_the_values_of_their_fields():
    kinds = {"float": "number", "int": "integer", "bool": "flag", "str": "choice"}
    for field in fields():
        for flag in DEFAULTS:
            if flag.dest == (field.flag or field.name):
                assert kinds[flag.type] == field.kind, flag.name
                if field.kind == "choice":
                    assert {*flag.choices, field.default} == set(field.choices), flag.name
                elif field.kind != "flag":
                    high = None if field.high == 2**31 else field.high  # the common bound of counts
                    assert (flag.low, flag.high, flag.above_low) == (field.low, high, field.above_low), flag.name

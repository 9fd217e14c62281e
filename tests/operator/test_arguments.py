"""Tests that the runtime's parser accepts the engine's command line, and that it has the values of the spec."""

import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from runtime.config import FLAGS
from runtime.config import parse as parse_arguments
from tests.operator.samples import SETTINGS, resource
from tests.operator.spec_strategies import SPECS, values
from unmask_operator.api import SpecError, parse
from unmask_operator.api.base import spelling
from unmask_operator.api.engine import Thresholds
from unmask_operator.render.adapters import MOUNT
from unmask_operator.render.arguments import engine_arguments
from unmask_operator.render.model import MODEL_MOUNT, adapter
from unmask_operator.settings import Settings

READERS = [  # flags whose values make the runtime read files, open sockets or accept secrets
    name
    for flag in FLAGS
    if flag.secret or re.search("FILE|DIR|PATH|ADDR", flag.metavar or "") or flag.name.startswith("master-")
    for name in flag.spellings
]
assert {"api-key", "api-key-file", "chat-template", "config", "zmq-command-addr", "zmq-event-addr"} < {*READERS}
NEWER = "r/unmask-runtime:9.9.9"
ALWAYS = ["--drain-timeout=60", "--drain-delay=10", "--log-format=json"]


def arguments(settings=SETTINGS, **spec):
    return engine_arguments(parse(resource(**spec)), settings)


@given(SPECS, st.none() | values(Thresholds))
def test_the_runtime_parses_the_arguments_of_any_spec(spec, thresholds):
    if thresholds is not None:
        spec = {**spec, "engine": {**spec.get("engine", {}), "thresholds": thresholds}}
    edits = spec.get("engine", {}).get("samplingMode") == "Edit"
    assume(not (edits and (thresholds or {}).get("remask")))  # the API server rejects it, as the runtime does
    assume("lora" not in spec or spec.get("parallelism", {}).get("tensor", 1) == 1)  # the API server rejects this too
    service = parse(resource(**spec))
    line = engine_arguments(service, SETTINGS)
    config = parse_arguments(line, {})
    engine, engine_config = service.spec.engine, config.engine
    assert engine_config.device == ("cuda" if service.spec.gpu else "cpu")
    lora = service.spec.lora
    merged = lora.adapters[0] if lora and lora.pre_merge else None
    assert config.model_names == (service.model_name, *([merged.name] if merged else []))
    assert config.lora_config == (MOUNT if lora and not merged else None)
    path = adapter(merged) if merged else None
    assert (engine_config.lora_path, engine_config.pre_merge_lora) == (path, merged is not None)
    assert engine_config.max_lora_rank == (lora.max_rank if lora else None)
    sizes = (engine_config.tensor_parallel_size, config.data_parallel_size, engine_config.expert_parallel_size)
    asked = service.spec.parallelism
    assert (*sizes, config.num_nodes) == (asked.tensor, asked.data, asked.expert, asked.nodes)
    assert config.drain_timeout == service.spec.drain_timeout_seconds
    assert engine_config.disable_prefix_caching is (engine.prefix_caching is False)
    for name in ("block_size", "buffer_size", "page_size", "max_model_len"):
        assert getattr(engine_config, name) == getattr(engine, name)
    for name, value in dict(engine.thresholds or {}).items():
        assert getattr(engine_config, f"{name}_threshold") == value
    for name in ("dtype", "quantization", "attn_impl", "decoding_strategy", "kv_cache_layout"):
        value = getattr(engine, name) or ("Unified" if name == "kv_cache_layout" else None)
        assert getattr(engine_config, name) == (None if value is None else spelling(value))


def test_only_fields_that_are_set_are_rendered():
    assert arguments() == ["--served-model-name=demo", "--device=cpu", *ALWAYS]
    engine = {
        "decodingStrategy": "MultiBd", "samplingMode": "Edit", "attnImpl": "TritonGrouped", "dtype": "Bfloat16",
        "kvCacheLayout": "Distinct", "quantization": "Fp8", "prefixCaching": False, "gpuMemoryUtilization": 0.5,
        "thresholds": {"accept": 0.8}, "extraArgs": ["--max-queue", "5"],
    }  # fmt: skip
    model = {"uri": "hf://a/b", "revision": "v1", "name": "m", "family": "llada2"}
    assert arguments(gpu={}, parallelism={"data": 2, "tensor": 4, "expert": 4}, model=model, engine=engine) == [
        *("--model=hf://a/b@v1", "--served-model-name=m", "--model-name=llada2", "--device=cuda"),
        *("--tensor-parallel-size=4", "--data-parallel-size=2", "--expert-parallel-size=4"),
        *("--decoding-strategy=multi_bd", "--sampling-mode=edit", "--attn-impl=triton_grouped"),
        *("--kv-cache-layout=distinct", "--dtype=bfloat16", "--quantization=fp8", "--gpu-memory-utilization=0.5"),
        *("--disable-prefix-caching=true", "--accept-threshold=0.8", *ALWAYS, "--max-queue", "5"),
    ]


@pytest.mark.parametrize(
    ("uri", "path"),
    [
        ("pvc://claim", MODEL_MOUNT), ("pvc://claim/", MODEL_MOUNT), ("pvc://claim/a/b.c/", f"{MODEL_MOUNT}/a/b.c"),
        ("hf://a/b", "hf://a/b$(MODEL_REVISION)"),
    ],
)  # fmt: skip
def test_a_models_uri_becomes_a_path(uri, path):
    assert arguments(model={"uri": uri})[0] == f"--model={path}"


SET_BY_FIELDS = {
    "model": {"uri": "demo://", "family": "llada2"},
    "lora": {"maxAdapters": 2},
    "auth": {"apiKeySecretRef": {"name": "s", "key": "k"}},  # the key file is absent here
}


@pytest.mark.parametrize(
    ("extra", "part"),
    [
        (["--no-such-flag=1"], "no such flag: --no-such-flag=1"),
        (["--max-queue=0"], "--max-queue"),
        (["-hh"], "print and exit"),
        (["--sampling-mode=edit", "--remask-threshold=0.1"], "--remask-threshold"),
        (["--model-family=llada2"], "--model-name is set by spec.model.family too"),
        (["--block-size", "32"], "--block-size is set by spec.engine.blockSize too"),
        (["--max-loras=3"], "--max-loras is set by spec.lora.maxAdapters too"),
        *(([argument], "is reserved for the operator") for argument in ("--port", "--port=1", "--model=/x", "--help")),
        *(([f"--{name}"], "is reserved") for name in READERS),
        *(([f"--{name.replace('-', '_')}=/x"], "is reserved") for name in READERS),
        *(([argument], " abbreviates --") for argument in ("--chat", "--chat_t=/x", "--conf", "--api")),
    ],
)
def test_invalid_reserved_and_repeated_flags_are_refused(extra, part):
    """The CustomResourceDefinition of another version may accept reserved ones."""
    with pytest.raises(SpecError) as caught:
        arguments(engine={"blockSize": 32, "extraArgs": extra}, **SET_BY_FIELDS)
    assert caught.value.field == "spec.engine.extraArgs"
    assert part in caught.value.message
    if " abbreviates" in part:
        with pytest.raises(SpecError, match=part):
            arguments(image=NEWER, engine={"extraArgs": extra})


@pytest.mark.parametrize(
    ("image", "extra"),
    [
        (NEWER, ["--model-name=llada2", "--max-queue=9", "port"]),  # begin like a reserved flag
        (NEWER, ["--flag-of-tomorrow=1"]),
        (None, ["--device=cpu"]),  # may be overridden
        (None, ["--max-queue=5"]),
    ],
)
def test_other_flags_are_accepted_and_follow_those_of_the_fields(image, extra):
    spec = {"gpu": {}, "engine": {"extraArgs": extra}, "auth": SET_BY_FIELDS["auth"]}
    assert arguments(image=image, **spec)[-len(extra) :] == extra
    assert arguments(Settings(runtime_image=image or SETTINGS.runtime_image), **spec)[-len(extra) :] == extra


def test_the_flags_of_an_image_of_this_version_are_checked():
    image = f"mirror.example:5000/unmask-runtime:{SETTINGS.version}"
    with pytest.raises(SpecError, match="no such flag"):
        arguments(image=image, engine={"extraArgs": ["--tomorrow=1"]})


@pytest.mark.parametrize(
    ("model", "field"),
    [
        ({"uri": "abfs://container/model"}, "uri"),  # only another version can load it
        ({"uri": "hf://a/b", "name": "$(HF_TOKEN)"}, "name"),  # Kubernetes would replace the variable
        ({"uri": "hf://a/b", "family": "$(x)"}, "family"),
        ({"uri": "hf://a/b", "revision": "$(X)"}, "revision"),
    ],
)
def test_a_text_that_no_argument_may_hold_is_refused(model, field):
    with pytest.raises(SpecError, match=rf"^spec\.model\.{field}"):
        arguments(model=model)

"""The flag table, its sources and the typed configuration."""

import dataclasses
import os
import re
import shlex
import subprocess
import sys

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from runtime.config import BY_DEST, FLAGS, EngineConfig, Flag, ServerConfig, check, default_model_name, parse
from runtime.errors import ConfigError

FIELDS = {f.name: f for c in (EngineConfig, ServerConfig) for f in dataclasses.fields(c)}


def refused(argv=(), environ=None, match=""):
    with pytest.raises(ConfigError, match=match) as caught:
        parse(list(argv), environ or {})
    assert "\n" not in str(caught.value)
    return str(caught.value)


def good_value(flag: Flag) -> str:
    """Returns a value that the flag accepts, other than the default."""
    if flag.type == "bool":
        return "true"
    if flag.choices:
        return next(c for c in flag.choices if c != flag.default)
    if flag.type == "str":
        return {
            "api-key": "0123456789abcdef", "lora": "x=y", "zmq-command-addr": "ipc://h1", "zmq-event-addr": "ipc://h2",
        }.get(flag.name, "x")  # fmt: skip
    if flag.type == "json":
        return '{"steps": 4}'
    if flag.type == "int":
        return "9000" if flag.name == "max-num-batched-tokens" else "3"
    return "0.25"


def test_defaults_of_table_and_dataclasses_agree():
    assert len({name for flag in FLAGS for name in flag.spellings}) == sum(len(f.spellings) for f in FLAGS)
    for flag in FLAGS:
        if flag.name not in ("config", "print-config"):
            owner = EngineConfig if flag.engine else ServerConfig
            assert getattr(owner(), flag.dest) == flag.default, flag.name
        else:
            assert flag.dest not in FIELDS
    assert set(FIELDS) - {f.dest for f in FLAGS} == {"engine", "skip_tokenizer", "keys_in_file", "notes"}
    assert parse([], {}) == ServerConfig()


@pytest.mark.parametrize("flag", FLAGS, ids=lambda f: f.name)
def test_every_flag_is_read_from_every_source(flag, tmp_path):
    if flag.name in ("config", "print-config", "api-key-file"):
        pytest.skip("has its own test")
    value = good_value(flag)
    extra = {"zmq-command-addr": ["--zmq-event-addr", "ipc://h9"], "zmq-event-addr": ["--zmq-command-addr", "ipc://h"]}
    extra |= {"use-lora": ["--lora-path", "x", "--pre-merge-lora"], "lora-path": ["--use-lora", "--pre-merge-lora"]}
    extra["pre-merge-lora"] = ["--use-lora", "--lora-path", "x"]
    extra |= {"max-lora-rank": ["--max-loras", "2"], "lora-routes-memory-gb": ["--lora-routes"]}
    extra |= {"profiler": ["--torch-profiler-dir", "x"], "torch-profiler-dir": ["--profiler", "torch"]}
    nodes = ["--num-nodes", "4", "--tensor-parallel-size", "4", "--master-port", "29500"]
    extra |= dict.fromkeys(("node-rank", "master-addr"), nodes) | {"master-port": nodes[:4]}
    extra["num-nodes"] = ["--tensor-parallel-size", "3", "--master-port", "29500"]
    extra["expert-parallel-size"] = ["--tensor-parallel-size", "3"]
    more = extra.get(flag.name, ["--data-parallel-size", "1"] if flag.name == "device-ids" else [])
    file = tmp_path / "c.yaml"
    file.write_text(f"{flag.name}: {value}")
    ways = [([f"--{flag.name}", value], {}), ([], {flag.env: value}), (["--config", str(file)], {})]
    ways += [([f"--{alias}", value], {}) for alias in flag.aliases]
    for argv, environ in ways:
        config = parse([*argv, *more], environ)
        owner = config.engine if flag.engine else config
        assert getattr(owner, flag.dest) == check(flag, value) != flag.default


def test_order_of_sources(tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text("port: 1\nmax_queue: 11\nlog-level: debug\n")
    environ = {"UNMASK_PORT": "2", "UNMASK_MAX_QUEUE": "12", "UNMASK_CONFIG": str(file), "OTHER": "x"}
    config = parse(["--port", "3"], environ)
    assert (config.port, config.max_queue, config.log_level) == (3, 12, "debug")
    other = tmp_path / "d.yaml"
    other.write_text("")
    assert parse(["--config", str(other)], environ).log_level == "info"


def test_yaml_forms(tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text(
        "eos-token-ids: [1, 2]\nserved_model_name: [a, b]\ndisable-prefix-caching: yes\naccept-threshold: 1e-1\n"
        "device: null\nrequest-timeout: 2\n"
    )
    config = parse(["--config", str(file)], {})
    assert config.engine.eos_token_ids == (1, 2)
    assert config.served_model_name == ("a", "b")
    assert config.engine.disable_prefix_caching is True
    assert config.engine.accept_threshold == 0.1
    assert config.request_timeout == 2.0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("port: 1\nport: 2", "the key 'port' occurs twice"),
        ("max-queue: 1\nmax_queue: 2", "max_queue .*max-queue"),
        ("model-name: a\nmodel-family: b", "model-family .*model-name"),
        ("prot: 1", "prot .*did you mean port"),
        ("config: x.yaml", "config .*no such flag"),
        ("- port", "holds a list"),
        ("port: {a: 1}", "not a single value"),
        ("port: [1, 2]", "not a single value"),
        ("port: 8e3", "port .*whole number"),
        ("max-num-reqs: true", "max-num-reqs .*whole number"),
        ("model: 7", "model .*quote it"),
        ("accept-threshold: .nan", "accept-threshold .*from 0 to 1"),
        ("port:", "port .*needs a value"),
        ("a: [", "cannot be parsed"),
        ("log-level: info\nserved-model-name: 2024-13-45",
         r"cannot be parsed \(line 2, column 20\): the value .* quote it$"),
        *((f"port: !!{kind} abc", r"cannot be parsed \(line 1, column 7\)")
          for kind in ("int", "float", "bool", "timestamp")),
        ("? [a, b]\n: 1", r"cannot be parsed \(line 1, column 1\)"),
        ("[" * 2000, "cannot be parsed: it is nested too deeply$"),
        ("port: 1\x01", "cannot be parsed: special characters are not allowed$"),
    ],
)  # fmt: skip
def test_bad_yaml(tmp_path, text, message):
    file = tmp_path / "c.yaml"
    file.write_text(text)
    refused(["--config", str(file)], match=message)


def test_unreadable_files(tmp_path):
    refused(["--config", str(tmp_path / "none.yaml")], match="--config: .*No such file")
    refused(["--api-key-file", str(tmp_path / "none")], match="--api-key-file: .*No such file")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    refused(["--config", str(tmp_path / "bytes")], match="UTF-8")
    refused(["--api-key-file", str(tmp_path)], match="--api-key-file: .*is not a regular file")


@pytest.mark.parametrize("key", ["qqq", "x" * 15, "0123456789 abcdef", "0123456789é123456"])
def test_an_invalid_key_is_refused_in_every_source(tmp_path, key):
    for name in ("keys", "config"):
        (tmp_path / name).write_text(key if name == "keys" else f"api-key: '{key}'")
        os.utime(tmp_path / name, (0, 0))
    ways = (["--api-key", key], ["--api-key-file", str(tmp_path / "keys")], ["--config", str(tmp_path / "config")])
    for argv in ways:
        assert key not in refused(argv, match="--api-key(-file)?: ").replace("--api-key", "")
    refused(environ={"UNMASK_API_KEY": key}, match="--api-key: ")


def test_an_empty_file_of_keys_rejects_all_requests(tmp_path):
    file = tmp_path / "keys"
    file.write_text(" \n,")
    os.utime(file, (0, 0))
    config = parse(["--api-key-file", str(file)], {})
    assert config.keys_in_file == ()
    assert "all requests are rejected (401)" in config.notes[0]


@pytest.mark.parametrize(
    "text", ["api-key: [KEY", "api-key: KEY\n\tb: 1", "api-key: {a: KEY}", "api-key: 'KEY", "api-key: NUMBER"]
)
def test_an_error_of_a_file_does_not_show_its_keys(tmp_path, text):
    file = tmp_path / "c.yaml"
    file.write_text(text.replace("KEY", "secret0123456789").replace("NUMBER", "1234567890123456789"))
    sentence = refused(["--config", str(file)], match="--config: |api-key")
    assert "0123456789" not in sentence
    assert "1234567890" not in sentence


def test_environment_names():
    parse([], {"UNMASK_KERNEL_CACHE": "/kernels"})  # read by the cache of kernels
    refused(environ={"UNMASK_PROT": "1"}, match="UNMASK_PROT: no such variable; did you mean UNMASK_PORT")
    refused(environ={"UNMASK_port": "1"}, match="UNMASK_port")
    refused(environ={"UNMASK_PORT": ""}, match="UNMASK_PORT: is empty")
    refused(environ={"UNMASK_API_KEY": " "}, match="UNMASK_API_KEY: is empty")
    refused(environ={"UNMASK_MODEL_NAME": "a", "UNMASK_MODEL_FAMILY": "b"}, match="UNMASK_MODEL_NAME.*same flag")
    assert parse([], {"UNMASK_DISABLE_PREFIX_CACHING": "1"}).engine.disable_prefix_caching


def test_the_default_of_host_in_an_image_yields_to_every_other_source(tmp_path, capsys):
    image = {"UNMASK_DEFAULT_HOST": "::"}
    file = tmp_path / "c.yaml"
    file.write_text("host: 10.0.0.1")
    assert parse([], image).host == "::"
    assert parse(["--config", str(file)], image).host == "10.0.0.1"
    assert parse(["--config", str(file)], image | {"UNMASK_HOST": "10.0.0.2"}).host == "10.0.0.2"
    assert parse(["--host", "10.0.0.3"], image | {"UNMASK_HOST": "10.0.0.2"}).host == "10.0.0.3"
    assert dataclasses.replace(parse([], image), host="127.0.0.1") == parse([], {})
    with pytest.raises(SystemExit):
        parse(["--print-config"], image)
    assert 'host: "::"  # UNMASK_DEFAULT_HOST' in capsys.readouterr().out
    refused(environ={"UNMASK_DEFAULT_HOST": ""}, match="UNMASK_DEFAULT_HOST: is empty")
    refused(environ={"UNMASK_DEFAULT_PORT": "1"}, match="UNMASK_DEFAULT_PORT: no such variable")


def test_variables_of_a_test_cluster_are_ignored():
    assert parse([], {"UNMASK_E2E_CLUSTER": "e2e-0", "UNMASK_E2E_KUBECONFIG": "/x"}) == parse([], {})


def test_variables_that_kubernetes_injects_for_a_service_are_ignored_or_explained():
    injected = {
        "UNMASK_SERVICE_HOST": "10.0.0.1", "UNMASK_SERVICE_PORT": "8000", "UNMASK_SERVICE_PORT_HTTP": "8000",
        "UNMASK_PORT_8000_TCP": "tcp://10.0.0.1:8000", "UNMASK_PORT_8000_TCP_ADDR": "10.0.0.1",
        "UNMASK_PORT_8000_TCP_PROTO": "tcp", "UNMASK_PORT_8000_TCP_PORT": "8000",
        "UNMASK_CHAT_SERVICE_HOST": "10.0.0.2", "UNMASK_CHAT_PORT": "tcp://10.0.0.2:80",
    }  # fmt: skip
    assert parse([], injected) == ServerConfig()
    injected["UNMASK_PORT"] = "tcp://10.0.0.1:8000"
    refused(environ=injected, match="UNMASK_PORT: .*enableServiceLinks: false")
    assert parse(["--port", "81"], injected).port == 81


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--prot", "1"], r"no such flag: --prot 1; did you mean --port\? \(--help lists common flags, --help-all"),
        (["--por", "1"], r"no such flag: --por 1; did you mean --port\?"),
        (["--max-num-seqs=4"], r"no such flag: --max-num-seqs=4; did you mean --max-num-reqs\?"),
        (["--wibble"], r"no such flag: --wibble \(--help lists"),
        ([""], r"no such flag: '' \(--help lists"),
        (["stray"], "stray"),
        (["--port"], "--port"),
        (["--port", "65536"], "--port: '65536' is not a whole number from 0 to 65535"),
        (["--port", "8_0"], "--port"),
        (["--drain-delay", "-1"], "--drain-delay"),
        (["--request-timeout", "-1"], "--request-timeout: .*at least 0"),
        (["--gpu-memory-utilization", "0"], "above 0 and at most 1"),
        (["--accept-threshold", "nan"], "--accept-threshold"),
        (["--penalty-lambda", "inf"], "--penalty-lambda"),
        (["--dtype", "float64"], "--dtype"),
        (["--device", "tpu"], "--device: 'tpu' is not one of cuda, cpu"),
        (["--quantization", "int2"], "--quantization: 'int2' is not one of fp8, int8, int4"),
        (["--torch-compile-mode", "reduce-overhead"], "'reduce-overhead' is not one of default, max-autotune-no-"),
        (["--torch-compile-mode", "default", "--deterministic"],
         "--torch-compile-mode: how compiled .*--deterministic"),
        (["--torch-compile-mode", "default", "--tensor-parallel-size", "2"],
         "--torch-compile-mode: sharded logits are not"),
        (["--full-cache", "all"], "--full-cache: 'all' is not one of prefix, dual, vicinity"),
        (["--sampling-mode", "edit", "--remask-threshold", "0.1"], "--remask-threshold"),
        (["--mask-token-id", "3", "--eos-token-ids", "1,3"], "--eos-token-ids: 3"),
        (["--eos-token-ids", "1,,2"], "--eos-token-ids: is empty"),
        (["--zmq-command-addr", "ipc://a"], "--zmq-event-addr: is required; give both"),
        (["--zmq-command-addr", "udp://a", "--zmq-event-addr", "ipc://a"], "--zmq-command-addr: .*use ipc://PATH"),
        (["--zmq-command-addr", "tcp://a:1", "--zmq-event-addr", "ipc://a"], "--zmq-command-addr: .*use ipc://PATH"),
        (["--zmq-command-addr", "ipc://a", "--zmq-event-addr", "tcp://a:1"], "--zmq-event-addr: .*use ipc://PATH"),
        (["--zmq-command-addr", "ipc://a", "--zmq-event-addr", "ipc://@a"], "--zmq-event-addr: .*use ipc://PATH"),
        (["--zmq-command-addr", "ipc://a", "--zmq-event-addr", "ipc://a"], "must differ"),
        (["--device-ids", "0,1"], "--device-ids: needs 1"),
        (["--device-ids", "0", "--device", "cpu"], "--device-ids"),
        (["--served-model-name", "a", "--served-model-name", "a"], "--served-model-name"),
        (["--api-key", "a b"], "--api-key"),
        (["--model", "a\nb"], "--model"),
    ],
)  # fmt: skip
def test_bad_values_are_refused_by_name(argv, message):
    refused(argv, match=message)


def test_pages_may_be_larger_and_smaller_than_blocks():
    for block, page in ((32, 8), (8, 32), (32, 32), (4, 2)):
        config = parse(["--block-size", str(block), "--page-size", str(page)], {})
        assert (config.engine.block_size, config.engine.page_size) == (block, page)


def test_api_keys_are_read_and_never_shown(tmp_path, capsys):
    file = tmp_path / "keys"
    one, two, three = (f"{word}-0123456789abcdef" for word in ("one", "two", "three"))
    file.write_text(f"{two},{three}\n{one}\n")
    os.utime(file, (0, 0))
    argv = ["--api-key", one, "--api-key-file", str(file)]
    config = parse(argv, {})
    assert config.api_key == (one,)
    assert config.keys_in_file == (two, three, one)
    assert "process list" in config.notes[0]
    assert parse(argv[2:], {"UNMASK_API_KEY": one}).notes == ()
    assert "0123456789" not in repr(config)
    with pytest.raises(SystemExit):
        parse(["--print-config", *argv], {})
    assert "0123456789" not in capsys.readouterr().out


def test_print_config_can_be_read_again(tmp_path, capsys):
    argv = ["--served-model-name", "a", "--eos-token-ids", "1,2", "--accept-threshold", "0.5", "--model", "it's: #x"]
    with pytest.raises(SystemExit) as end:
        parse([*argv, "--print-config"], {"UNMASK_LOG_LEVEL": "debug"})
    assert end.value.code == 0
    out = capsys.readouterr().out
    assert 'log-level: "debug"  # UNMASK_LOG_LEVEL' in out
    assert "max-model-len: null  # default: the length that the checkpoint was trained for, or the longest" in out
    assert set(yaml.safe_load(out)) == {f.name for f in FLAGS} - {"config", "print-config", "api-key"}
    file = tmp_path / "c.yaml"
    file.write_text(out)
    assert parse(["--config", str(file)], {}) == parse(argv, {"UNMASK_LOG_LEVEL": "debug"})


def test_engine_config_from_python():
    config = EngineConfig.from_flags(model_family="llada2", attn_impl="naive", dtype="float64", eos_token_ids=[1])
    assert config == EngineConfig(model_name="llada2", attn_impl="torch", dtype="float64", eos_token_ids=(1,))
    assert EngineConfig.from_flags(tensor_parallel_size=1, quantization="none") == EngineConfig()
    assert EngineConfig.from_flags(quantization="fp8").quantization == "fp8"
    for flags, message in (
        ({"bloc_size": 3}, r"bloc_size: no such flag; did you mean block_size\?"),
        ({"wibble": 3}, "wibble: no such flag; python -m runtime.server --help-all"),
        ({"port": 3}, "port: a flag of the server"),
        ({"quantization": "int2"}, "quantization: 'int2' is not one of fp8, int8, int4"),
        ({"max_num_reqs": 1.0}, "--max-num-reqs"),
        ({"max_num_reqs": True}, "--max-num-reqs"),
        ({"accept_threshold": "high"}, "--accept-threshold"),
        ({"skip_tokenizer": 1}, "skip_tokenizer"),
    ):
        with pytest.raises(ConfigError, match=message):
            EngineConfig.from_flags(**flags)


def test_model_names():
    assert ServerConfig().model_names == ("unmask-demo",)
    assert default_model_name("/a/b/LLaDA2.0-mini/") == "LLaDA2.0-mini"
    assert default_model_name("hf://org/name@rev") == "org/name"
    assert parse(["--served-model-name=a", "--served-model-name=b"], {}).model_names == ("a", "b")


NUMBERS = [f for f in FLAGS if f.type in ("int", "float") and not f.many]


@given(st.sampled_from(NUMBERS), st.one_of(st.integers(-(2**70), 2**70), st.floats(), st.text(), st.booleans()))
def test_a_value_is_in_range_or_refused(flag, value):
    try:
        result = check(flag, value)
    except ConfigError as error:
        refusal = str(error)
    else:
        refusal = ""
    if refusal:
        assert refusal.startswith(f"--{flag.name}: ")
        return
    if result is None:
        assert flag.default is None
        return
    assert type(result) is (int if flag.type == "int" else float)
    assert flag.low is None or result >= flag.low
    assert flag.high is None or result <= flag.high
    assert check(BY_DEST[flag.dest], str(result)) == result  # the text of a value gives the same value


def test_help_lists_common_flags_and_help_all_lists_every_flag(capsys):
    texts = {}
    for argument in ("--help", "-h", "--help-all"):
        with pytest.raises(SystemExit) as end:
            parse([argument], {})
        assert end.value.code == 0
        texts[argument] = capsys.readouterr().out
    listed = {argument: set(re.findall(r"^  --([a-z0-9-]+)", text, re.MULTILINE)) for argument, text in texts.items()}
    common = {flag.name for flag in FLAGS if flag.common}
    assert listed["--help"] - {"help-all"} == common
    assert listed["--help-all"] - {"help-all"} == {flag.name for flag in FLAGS}
    assert texts["--help"] == texts["-h"]
    for text in texts.values():
        command = next(line for line in text.splitlines() if line.startswith("  python -m runtime.server "))
        parse(shlex.split(command)[3:], {})
    assert "--help-all" in texts["--help"]


def test_help_imports_no_large_package():
    code = "import sys; from runtime.config import parse\ntry: parse(['--help-all'], {})\nexcept SystemExit: pass\n"
    code += "print([m for m in ('torch', 'yaml', 'tokenizers', 'pydantic', 'numpy') if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.endswith("[]\n")
    for flag in FLAGS:
        assert f"--{flag.name} " in out


def test_adapters_that_are_added_later_may_have_the_requested_rank():
    engine = parse(["--lora-config=/adapters", "--max-lora-rank=8"], {}).engine
    assert (engine.max_loras, engine.max_lora_rank) == (8, 8)
    assert parse(["--lora-routes", "--max-loras=3"], {}).engine.max_loras == 3
    assert parse(["--lora=a=/a", "--lora-routes"], {}).engine.max_loras is None

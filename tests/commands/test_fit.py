"""Tests of `unmask fit`: sizes of published shapes, verdicts, and the sentence with which the server refuses too."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

from runtime import LLM, cli
from runtime.bench.model_shapes import architecture
from runtime.commands.devices import DEVICES, free_memory
from runtime.engine import fit
from runtime.errors import ConfigError
from runtime.parameters.weight import named_weights
from runtime.weights.checkpoint import resolve_checkpoint
from tests.golden import GOLDEN
from tests.models.paged import load
from tests.quantization.packed_integers import gptq_config
from tests.quantization.quantized_files import write_both
from tests.server.harness import ROOT
from tests.wait import TIMEOUT
from tests.weights.test_before_download import Stub, stub

__all__ = ["stub"]


def shape(directory: Path, name: str) -> str:
    """Writes the config.json of a published shape. Returns its directory."""
    (directory / name).mkdir()
    (directory / name / "config.json").write_text(json.dumps(architecture(name)))
    return str(directory / name)


def test_sizes_are_those_of_the_published_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The index of SDAR-8B-Chat has 16,381,470,720 bytes. The others are those of docs/models/index.md."""
    assert cli.main(["fit", shape(tmp_path, "sdar-8b"), "--device", "NVIDIA H200"]) == 0
    output = capsys.readouterr().out
    assert re.search(r"KV cache per token +147,456 bytes", output)
    assert re.search(r"weights, bfloat16 +16\.4 GB", output)
    found = dict(re.findall(r"^(\w+) +weights +([\d.]+) GB .* fits$", output, re.MULTILINE))
    assert found == {"bfloat16": "16.4", "fp8": "9.44", "int8": "9.44", "int4": "6.18", "nvfp4": "6.40"}


def test_the_size_of_a_file_is_computed_exactly(capsys: pytest.CaptureFixture[str]) -> None:
    size = 4 * sum(tensor.numel() for tensor in load_file(resolve_checkpoint(None).path / "model.safetensors").values())
    assert cli.main(["fit", "--device", "cpu", "--dtype", "float32"]) == 0
    assert re.search(rf"weights, float32 +{size / 1e6:.1f} MB", capsys.readouterr().out)


@pytest.mark.parametrize("known", ["files", "index", "config"])
def test_unquantized_parts_of_a_quantized_checkpoint_count_in_full(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], known: str
) -> None:
    """The names of the tensors tell what is quantized, or, before a download without an index, config.json."""
    several = {"re:.*attention.*": "fp8, outputs", "re:.*": "int4, groups of 32"}
    path, _ = write_both(several, GOLDEN / "llada2_tiny", tmp_path, lambda name: "layers.0" in name)
    config = json.loads((path / "config.json").read_text())
    config["quantization_config"]["ignore"] = [r"re:.*layers\.0\."]
    (path / "config.json").write_text(json.dumps(config))
    loaded = sum(weight.nbytes for weight in named_weights(load(path)).values())
    if known == "index":
        names = dict.fromkeys(load_file(path / "model.safetensors"), "model.safetensors")
        (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    if known != "files":
        (path / "model.safetensors").unlink()
    assert cli.main(["fit", str(path), "--device", "cpu", "--mask-token-id", "3"]) == 0
    assert re.search(rf"weights, fp8\+int4_32 +{loaded / 1e6:.1f} MB", capsys.readouterr().out)


def test_a_pattern_that_matches_half_of_a_weight_is_no_refusal_before_the_download(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """AWQ's patterns are parts of names: the router's, mlp.gate, also matches mlp.gate_proj. The files decide."""
    path, _ = write_both("AWQ", GOLDEN / "llada2_tiny", tmp_path)
    config = json.loads((path / "config.json").read_text())
    config["quantization_config"]["modules_to_not_convert"] = ["mlp.gate", "lm_head"]
    (path / "config.json").write_text(json.dumps(config))
    loaded = sum(weight.nbytes for weight in named_weights(load(path)).values())
    (path / "model.safetensors").unlink()
    assert cli.main(["fit", str(path), "--device", "cpu", "--mask-token-id", "3"]) == 0
    assert re.search(rf"weights, int4\w+ +{loaded / 1e6:.1f} MB", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("name", "flags", "code", "says"),
    [
        ("llada-8b", ["--device", "T4"], 1, r"Tesla T4 has .* set --quantization int8 \(weights: 9\.06 GB\), or"),
        ("sdar-8b", ["--device", "L4"], 0, "may not fit: lower --max-num-batched-tokens"),
        ("sdar-8b", ["--device", "A10", "--max-model-len", "32768"], 1, r"set --quantization int8 \(weights: 9"),
        ("sdar-8b", ["--device", "23GB", "--max-model-len", "32768", "--max-num-batched-tokens", "512"], 1,
         r"set --max-model-len 1\d{4}, or"),
        ("sdar-8b", ["--device", "L4", "--num-pages", "100000"], 1, "set a smaller --num-pages, at most [1-9]"),
        ("llada2-flash", ["--device", "3060"], 1, "use a device with at least"),
        ("llada2-mini", ["--device", "L4", "--tensor-parallel-size", "2"], 0, "on each of 2 devices +16.3 GB"),
        ("sdar-8b", ["--device", "a100"], 2, "names several devices; give one of NVIDIA A100 40GB, NVIDIA A100 80GB"),
        ("sdar-8b", ["--device", "abacus"], 2, "'abacus' is not a known device"),
        ("sdar-8b", ["--device", "L4", "--max-model-len", "100000"], 2, "is more than the checkpoint's limit"),
        ("sdar-8b", ["--device", "L4", "--quantisation", "int4"], 2, "no such flag.*--quantization"),
        # 151,936 rows of 4,096 bytes and a scale, in addition to 9.44 GB
        ("sdar-8b", ["--device", "L4", "--quantization", "fp8", "--quantized-lm-head"], 0, r"fp8 +weights +10\.1 GB"),
        ("sdar-8b", ["--device", "L4", "--quantized-lm-head"], 1, "--quantized-lm-head needs fp8 weights on a GPU"),
    ],
)  # fmt: skip
def test_verdicts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, flags: list[str], code: int, says: str
) -> None:
    assert cli.main(["fit", shape(tmp_path, name), *flags]) == code
    output = "".join(capsys.readouterr())
    assert re.search(says, output)
    if code:
        assert output.splitlines()[-1].startswith("error: ")


def test_weights_that_the_loader_refuses_do_not_fit(
    stub: Stub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A directory with config.json alone has no weights yet. One with files of torch.save has weights of that kind."""
    directory = Path(shape(tmp_path, "sdar-8b"))
    files = {"config.json": (directory / "config.json").read_bytes(), "pytorch_model-00001-of-00002.bin": b"x"}
    (directory / "pytorch_model-00001-of-00002.bin").touch()
    assert cli.main(["fit", str(directory), "--device", "H200"]) == 2
    assert "holds no safetensors file of weights" in capsys.readouterr().err
    command = [sys.executable, "-m", "runtime.cli", "fit", stub.add("pickled", files), "--device", "H200"]
    environ = stub.environ(tmp_path / "home")
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=TIMEOUT)
    assert done.returncode == 2, done
    assert "holds no safetensors file of weights" in done.stderr


@pytest.mark.parametrize(("desc_act", "proposes"), [(False, True), (True, False)])
def test_ranks_are_not_proposed_for_weights_in_activation_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], desc_act: bool, proposes: bool
) -> None:
    directory = Path(shape(tmp_path, "sdar-8b"))
    config = json.loads((directory / "config.json").read_text())
    config["quantization_config"] = gptq_config(4, 128, desc_act=desc_act)
    (directory / "config.json").write_text(json.dumps(config))
    assert cli.main(["fit", str(directory), "--device", "6GB", "--max-num-batched-tokens", "512"]) == 1
    assert ("--tensor-parallel-size" in capsys.readouterr().err) is proposes


@pytest.mark.parametrize("name", ["llada-8b", "sdar-8b", "llada2-mini", "sdar-30b-a3b", "llada2-flash"])
@pytest.mark.parametrize("device", ["T4", "L4", "RTX 4090", "A100 80GB", "H200"])
def test_proposed_flags_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, device: str) -> None:
    directory = shape(tmp_path, name)
    if cli.main(["fit", directory, "--device", device]):
        (error,) = capsys.readouterr().err.splitlines()
        for flag in re.findall(
            r"--(?:max-model-len|quantization|tensor-parallel-size) \w+(?= \(|,|$)", error.split("; ")[1]
        ):
            assert cli.main(["fit", directory, "--device", device, *flag.split()]) == 0, flag


def test_the_server_refuses_with_the_same_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It comes before a shard is read: the shard here cannot be read."""
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemAvailable: 100 kB\nSwapFree: 20 kB\n")
    monkeypatch.setattr(fit, "_MEMORY", meminfo)
    directory = shutil.copytree(GOLDEN / "sdar", tmp_path / "sdar")
    (directory / "model.safetensors").write_bytes(b"no weights")
    assert cli.main(["fit", str(directory), "--device", "cpu"]) == 1
    sentence = capsys.readouterr().err.removeprefix("error: ").strip()
    assert "this host has 0.1 MB of memory available" in sentence
    with pytest.raises(ConfigError) as refused:
        LLM(str(directory), device="cpu", skip_tokenizer=True)
    assert str(refused.value) == sentence


@pytest.mark.parametrize(
    ("limit", "current", "available"),
    [("max", "0", 1_024_000), ("900000", "500000", 600_000), ("9000000", "0", 1_024_000)],
)
def test_a_container_has_the_memory_of_its_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, current: str, available: int
) -> None:
    """Cached files are freed when programs need memory."""
    files = {"memory.max": limit, "memory.current": current, "memory.stat": "inactive_file 150000\nactive_file 50000\n"}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "meminfo").write_text("MemTotal: 9000 kB\nMemAvailable: 1000 kB\n")
    monkeypatch.setattr(fit, "_MEMORY", tmp_path / "meminfo")
    monkeypatch.setattr(fit, "_CGROUP", tmp_path)
    assert fit.available_memory() == available


@pytest.mark.parametrize(
    ("name", "found"),
    [
        *((name, name) for name in DEVICES), ("l4", "NVIDIA L4"), ("H100", "NVIDIA H100"),
        ("4090", "NVIDIA GeForce RTX 4090"), ("NVIDIA H100 80GB HBM3", "NVIDIA H100"),
        ("NVIDIA A100-SXM4-80GB", "NVIDIA A100 80GB"), ("24GB", "a GPU of 24 GB"),
    ],
)  # fmt: skip
def test_names_of_devices(name: str, found: str) -> None:
    assert free_memory(name)[0] == found

"""Tests of checkpoints in one file and in shards, and of broken ones, which end the start with one sentence."""

import errno
import json
import logging
import os
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from runtime.errors import ConfigError
from runtime.lora.adapter_checkpoint import resolve_adapter
from runtime.weights.checkpoint import resolve_checkpoint, unlisted_shards
from tests.models.paged import load, logits_in_chunks
from tests.oracle.tiny import tiny_config, tiny_tensors

GATE = "model.layers.1.mlp.experts.2.gate_proj.weight"


def one_line(error) -> str:
    message = str(error.value)
    assert "\n" not in message
    return message


@pytest.fixture
def tiny(tmp_path):
    """Returns a function that writes a tiny checkpoint whose tensors are changed by `change`."""

    def write(change=lambda tensors: None, **config):
        settings = tiny_config(**config)
        tensors = tiny_tensors(settings, seed=1)
        change(tensors)
        (tmp_path / "config.json").write_text(json.dumps(settings))
        save_file(tensors, tmp_path / "model.safetensors")
        return tmp_path

    return write


def shard(path, parts=3):
    """Splits model.safetensors into `parts` files with an index; returns their names."""
    tensors = load_file(path / "model.safetensors")
    (path / "model.safetensors").unlink()
    names, files = sorted(tensors), [f"model-{n}-of-{parts}.safetensors" for n in range(parts)]
    index = {name: files[n % parts] for n, name in enumerate(names)}
    for file in files:
        save_file({n: t for n, t in tensors.items() if index[n] == file}, path / file)
    (path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    return files


def logits(model):
    return logits_in_chunks(model, [[1, 2, 3, 4, 5, 6]], block_size=4, page_size=4, chunk_blocks=[2])[0]


def test_shards_load_like_one_file(tiny):
    path = tiny()
    expected = logits(load(path))
    shard(path)
    assert torch.equal(logits(load(path)), expected)


def test_an_index_may_name_files_by_path(tiny):
    path = tiny()
    expected = logits(load(path))
    (path / "parts").mkdir()
    for file in shard(path):
        (path / file).rename(path / "parts" / file)
    index = path / "model.safetensors.index.json"
    names = json.loads(index.read_text())["weight_map"]
    for before in ("parts/", "./parts/", "parts/../parts/"):
        index.write_text(json.dumps({"weight_map": {name: before + file for name, file in names.items()}}))
        assert torch.equal(logits(load(path)), expected)
    index.write_text(json.dumps({"weight_map": {name: "../parts/" + file for name, file in names.items()}}))
    with pytest.raises(ConfigError, match="is not a name inside the checkpoint"):
        load(path)


def test_an_index_takes_precedence_over_a_single_file(tiny, caplog):
    path = tiny()
    expected = logits(load(path))
    single = (path / "model.safetensors").read_bytes()
    shard(path)
    stray = tiny_tensors(tiny_config(), seed=2)
    save_file(stray, path / "model.safetensors")
    assert torch.equal(logits(load(path)), expected)
    assert "model.safetensors ignored: model.safetensors.index.json lists other files" in caplog.text
    caplog.clear()
    (path / "model.safetensors").write_bytes(single)
    names = dict.fromkeys(load_file(path / "model.safetensors"), "model.safetensors")
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    assert torch.equal(logits(load(path)), expected)
    assert caplog.text == ""


def test_a_single_file_does_not_replace_lost_shards(tiny):
    path = tiny()
    single = (path / "model.safetensors").read_bytes()
    lost, *_ = shard(path)
    (path / lost).unlink()
    (path / "model.safetensors").write_bytes(single)
    with pytest.raises(ConfigError, match=r"lacks 'model-0-of-3\.safetensors', which model\.safetensors\.index\.json"):
        load(path)


@pytest.mark.parametrize("form", ["index", "shards", "single"])
@pytest.mark.parametrize(
    "names",
    [
        ["adapter_model.safetensors"],
        ["consolidated.safetensors", "adapters.safetensors"],
        ["consolidated-00001-of-00002.safetensors", "consolidated-00002-of-00002.safetensors"],
        ["optimizer.safetensors"],
    ],
)
def test_other_files_beside_the_weights_are_ignored(tiny, caplog, form, names):
    """They are an adapter, copies of the weights under the authors' names, or a damaged file."""
    caplog.set_level(logging.INFO)
    path = tiny()
    expected = logits(load(path))
    if form != "single":
        shard(path, parts=2)
    if form == "shards":
        (path / "model.safetensors.index.json").unlink()
    assert "ignored" not in caplog.text
    for name in names:
        save_file({"layers.0.wq.weight": torch.zeros(2, 2)}, path / name)
    (path / names[-1]).write_bytes(b"damaged")
    assert torch.equal(logits(load(path)), expected)
    why = "model.safetensors.index.json lists other files" if form == "index" else "no shard of the weights"
    for name in names:
        assert f"{name} ignored: {why}" in caplog.text


def test_shards_that_an_index_does_not_name_are_ignored(tiny, caplog):
    caplog.set_level(logging.INFO)
    path = tiny()
    expected = logits(load(path))
    shard(path)
    save_file(tiny_tensors(tiny_config(), seed=2), path / "model-0-of-9.safetensors")
    assert torch.equal(logits(load(path)), expected)
    assert "model-0-of-9.safetensors ignored: model.safetensors.index.json lists other files" in caplog.text


def test_a_mounted_image_may_have_the_files_in_models(tiny):
    path = tiny()
    (folder := path / "models").mkdir()
    for name in ("config.json", "model.safetensors"):
        (path / name).rename(folder / name)
    assert resolve_checkpoint(str(path)).path == folder


def test_an_adapter_alone_is_no_checkpoint(tiny):
    path = tiny()
    (path / "model.safetensors").rename(path / "adapter_model.safetensors")
    with pytest.raises(
        ConfigError, match=r"no safetensors file of weights, only 'adapter_model.safetensors'; .*--lora"
    ):
        load(path)


def test_progress_reaches_the_last_byte(tiny):
    seen = []
    load(tiny(), progress=lambda *progress: seen.append(progress))
    done = [d for _, d, _ in seen]
    assert {phase for phase, _, _ in seen} == {"weights"}
    assert done == sorted(done)
    assert done[-1] == seen[0][2] == sum(t.numel() * 4 for t in tiny_tensors(tiny_config(), 1).values())


def test_the_other_name_of_the_expert_bias(tiny):
    def rename(tensors):
        for name in [n for n in tensors if n.endswith("gate.expert_bias")]:
            tensors[name.replace("expert_bias", "e_score_correction_bias")] = tensors.pop(name)

    tiny_logits = logits(load(tiny()))
    assert torch.equal(logits(load(tiny(rename))), tiny_logits)


def fuse(tensors, parts=("gate_proj", "up_proj", "down_proj")):
    """Fuses the experts of layer 1 into one tensor [experts, out, in] per part."""
    for part in parts:
        names = [f"model.layers.1.mlp.experts.{expert}.{part}.weight" for expert in range(4)]
        tensors[f"model.layers.1.mlp.experts.{part}"] = torch.stack([tensors.pop(name) for name in names])


@pytest.mark.parametrize("parts", [("gate_proj", "up_proj", "down_proj"), ("down_proj",)])
def test_experts_may_be_fused(tiny, parts):
    tiny_logits = logits(load(tiny()))
    assert torch.equal(logits(load(tiny(lambda t: fuse(t, parts)))), tiny_logits)


def test_a_head_may_be_normalized_when_it_is_loaded(tiny):
    def norm(tensors):
        head = tensors["lm_head.weight"]
        tensors["lm_head.weight"] = head / head.square().sum(0).sqrt()

    expected = logits(load(tiny(norm)))
    torch.testing.assert_close(logits(load(tiny(norm_head=True))), expected)
    assert not torch.allclose(logits(load(tiny())), expected)
    with pytest.raises(ConfigError, match="norm_head is not supported with tie_word_embeddings"):
        load(tiny(norm_head=True, tie_word_embeddings=True))


def test_known_skips(tiny):
    def add(tensors):
        tensors["model.rotary_emb.inv_freq"] = torch.ones(4)
        tensors["lm_head.weight"] = torch.zeros(32, 16)

    tied = {"tie_word_embeddings": True}
    assert torch.equal(logits(load(tiny(add, **tied))), logits(load(tiny(**tied))))
    with pytest.raises(ConfigError, match="unknown: 'surplus'"):
        load(tiny(lambda t: t.update(surplus=torch.ones(1))))


def test_casting(tiny):
    model = load(tiny(), torch.bfloat16)
    assert model.embed_tokens.weight.dtype == torch.bfloat16
    assert model.layers[1].mlp.gate.weight.dtype == torch.float32, "routing is in float32"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda t: t.pop(GATE), f"1 missing: '{GATE}'"),
        (lambda t: t.pop("lm_head.weight"), "1 missing: 'lm_head.weight'"),
        (lambda t: [t.pop(n) for n in list(t) if "experts" in n], "missing: 'model.layers.1.mlp.experts.0.down"),
        (lambda t: t.update({"model.layers.2.attention.dense.weight": torch.ones(2)}), "1 unknown: 'model.layers.2"),
        (lambda t: t.update({GATE: torch.ones(8, 15)}), f"{GATE} is [8, 15], not [8, 16]"),
        (lambda t: t[GATE].view(-1)[5:6].fill_(float("nan")), f"'{GATE}' of"),
        (lambda t: t[GATE].view(-1)[5:6].fill_(float("inf")), "NaN or infinite"),
        (lambda t: t.update({GATE: torch.ones(8, 16, dtype=torch.int8)}), "torch.int8: quantized"),
        (lambda t: t.update({GATE: torch.ones(8, 16).to(torch.float8_e4m3fn)}), "quantized"),
        (lambda t: t.update({"model.layers.1.mlp.gate.e_score_correction_bias": torch.ones(4)}), "more than once"),
    ],
)
def test_broken_tensors(tiny, change, sentence):
    with pytest.raises(ConfigError) as error:
        load(tiny(change))
    assert sentence in one_line(error)


def test_many_missing_tensors_are_counted_and_a_few_named(tiny):
    with pytest.raises(ConfigError) as error:
        load(tiny(lambda t: [t.pop(n) for n in list(t) if "layers.1" in n]))
    assert "23 missing" in one_line(error)
    assert "and 19 more" in one_line(error)


def test_a_dtype_too_narrow_for_the_weights(tiny):
    with pytest.raises(ConfigError, match="choose another --dtype"):
        load(tiny(lambda t: t[GATE].view(-1)[0:1].fill_(1e6)), torch.float16)


def test_broken_shards(tiny):
    path = tiny()
    files = shard(path)
    (path / files[1]).rename(path / "elsewhere")
    with pytest.raises(ConfigError, match=r"lacks 'model-1-of-3\.safetensors'"):
        resolve_checkpoint(str(path))
    (path / "elsewhere").rename(path / files[1])
    (path / files[0]).write_bytes((path / files[0]).read_bytes()[:100])
    with pytest.raises(ConfigError, match="not a readable safetensors file"):
        load(path)
    save_file({"model.norm.weight": torch.ones(16)}, path / files[0])
    with pytest.raises(ConfigError, match=r"does not list there|do not hold"):
        load(path)
    (path / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(ConfigError, match="no weight_map"):
        resolve_checkpoint(str(path))


@pytest.mark.parametrize("error", [RuntimeError("unable to mmap 9 bytes from file </x>: no memory"), MemoryError()])
def test_a_file_larger_than_the_memory_that_can_be_mapped(tiny, monkeypatch, error):
    def refuse(path, **_):
        raise error

    monkeypatch.setattr("runtime.weights.checkpoint.safe_open", refuse)
    with pytest.raises(
        ConfigError, match=r"^\S*model\.safetensors cannot be mapped into memory: .*, or use smaller shards$"
    ):
        load(tiny())


def test_a_directory_without_permission(tmp_path, monkeypatch):
    def refuse(path, **_):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "stat", refuse)  # permissions do not apply to root
    with pytest.raises(ConfigError, match="cannot be read: Permission denied"):
        resolve_checkpoint(str(tmp_path))


def test_directories_that_are_no_checkpoint(tmp_path):
    for wrong in (str(tmp_path / "nowhere"), __file__, "~nobody-here/model", "a\0b"):
        with pytest.raises(ConfigError, match="is not a directory"):
            resolve_checkpoint(wrong)
        with pytest.raises(ConfigError, match="is not a directory"):
            resolve_adapter(wrong)
    with pytest.raises(ConfigError, match="cannot be read: File name too long"):
        resolve_checkpoint("x" * 5000)
    with pytest.raises(ConfigError, match=r"no config\.json"):
        resolve_checkpoint(str(tmp_path))
    problems = {"{]": "not readable JSON", "[1]": "must hold a JSON object", "{}": "no safetensors file"}
    for content, problem in problems.items():
        (tmp_path / "config.json").write_text(content)
        with pytest.raises(ConfigError, match=problem):
            resolve_checkpoint(str(tmp_path))
    for name in ("hf://", "hf://alone", "hf://a/b/c", "hf://a/b@"):
        with pytest.raises(ConfigError, match="not of the form"):
            resolve_checkpoint(name)


@pytest.mark.parametrize(
    ("files", "loaded", "problem"),
    [
        (["model.safetensors", "consolidated.safetensors", "adapter_model.safetensors"], ["model.safetensors"], ""),
        (["a.safetensors", "b.safetensors", "adapter_model.safetensors"], ["a.safetensors", "b.safetensors"], ""),
        (["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "consolidated-1-of-1.safetensors"],
         ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"], ""),
        (["model-00000-of-00002.safetensors", "model-00001-of-00002.safetensors"],
         ["model-00000-of-00002.safetensors", "model-00001-of-00002.safetensors"], ""),
        (["model-1-of-1.safetensors", "mtp-1-of-2.safetensors", "mtp-2-of-2.safetensors"],
         ["model-1-of-1.safetensors", "mtp-1-of-2.safetensors", "mtp-2-of-2.safetensors"], ""),
        (["model-1-of-1.safetensors", "mtp-1-of-2.safetensors"], [], "has 'mtp-1-of-2.*, but lacks number 2 of 2"),
        (["model-00002-of-00003.safetensors"], [], "'model-00002-of-00003.*, but lacks number 1, 3 of 3"),
        (["consolidated.safetensors"], [], "holds no safetensors file of weights, only 'consolidated.safetensors'"),
        (["pytorch_model.bin", "lora/adapter_model.safetensors"], [], "holds no safetensors file"),
    ],
)  # fmt: skip
def test_weights_without_an_index(files, loaded, problem):
    if problem:
        with pytest.raises(ConfigError, match=problem):
            unlisted_shards(files, "here")
    else:
        assert unlisted_shards(files, "here") == loaded


def test_a_directory_of_the_hub_cache_is_named_by_its_commit(tiny, tmp_path):
    path, commit = tiny(), "0123456789abcdef" * 2 + "01234567"
    assert resolve_checkpoint(str(path)).revision is None
    for snapshot, revision in ((f"snapshots/{commit}", commit), ("snapshots/main", None), (f"else/{commit}", None)):
        copied = shutil.copytree(path, tmp_path / "cache" / snapshot, ignore=shutil.ignore_patterns("cache"))
        assert resolve_checkpoint(str(copied)).revision == revision


def test_an_unknown_family_lists_the_known(tiny):
    with pytest.raises(ConfigError, match=r"'gpt2' .*belongs to no known family; known: .*llada2"):
        load(tiny(model_type="gpt2"))
